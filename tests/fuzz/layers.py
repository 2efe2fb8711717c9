"""Statements that call layers with parameters, and functions of torch.nn.functional."""

from __future__ import annotations

from fuzz.sketch import DoesNotRun, Sketch, Value

ACTIVATIONS = (
    *("torch.relu({})", "torch.tanh({})", "torch.sigmoid({})", "F.gelu({})", "F.silu({})", "F.leaky_relu({}, 0.1)"),
    *("F.softplus({})", "F.hardswish({})", "F.elu({})", "F.mish({})", "F.relu6({})", "F.logsigmoid({})"),
)


def _channels(sketch: Sketch, rank: int) -> Value:
    """Return a floating value of this rank whose dimension 1 is static."""
    return sketch.pick(lambda v: v.floating and v.rank == rank and v.static(1))


def _features(sketch: Sketch, *ranks: int) -> Value:
    """Return a floating value whose last dimension is static."""
    return sketch.pick(lambda v: v.floating and v.rank in (ranks or (1, 2, 3, 4)) and v.static(-1))


def _even(size: int) -> int:
    if size % 2:
        raise DoesNotRun
    return size


def linear(sketch: Sketch) -> None:
    value = _features(sketch)
    bias = sketch.choose("", ", bias=False")
    layer = sketch.layer(f"nn.Linear({value.size(-1)}, {sketch.choose(4, 3, 1, 6)}{bias})", "linear")
    sketch.let(f"{layer}({value})")


def activation(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating)
    sketch.let(sketch.choose(*ACTIVATIONS).format(value))


def softmax(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating)
    sketch.let(f"{sketch.choose('torch.softmax', 'torch.log_softmax')}({value}, {sketch.axis(value)})")


def gated(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.static(-1))
    _even(value.size(-1))
    sketch.let(f"F.glu({value}, -1)")


def parametrised_activation(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank > 1)
    layer = sketch.layer(sketch.choose("nn.PReLU()", "nn.ReLU(inplace=False)", "nn.Hardtanh(-0.5, 0.5)"), "act")
    sketch.let(f"{layer}({value})")


def norm_of_features(sketch: Sketch) -> None:
    value = _features(sketch)
    layer = sketch.layer(f"{sketch.choose('nn.LayerNorm', 'nn.RMSNorm')}({value.size(-1)})", "norm")
    sketch.let(f"{layer}({value})")


def norm_of_channels(sketch: Sketch) -> None:
    rank = sketch.choose(3, 4, 2)
    channels = _channels(sketch, rank).size(1)
    value = sketch.pick(lambda v: v.floating and v.rank == rank and v.static(1) and v.size(1) == channels)
    made = f"nn.BatchNorm{'2d' if rank == 4 else '1d'}({channels})"
    layer = sketch.layer(sketch.choose(made, f"nn.GroupNorm(1, {channels})", f"nn.GroupNorm({channels}, {channels})"))
    sketch.let(f"{layer}({value})")


def convolution(sketch: Sketch) -> None:
    rank = sketch.choose(1, 2)
    value = _channels(sketch, rank + 2)
    kernel, channels = sketch.choose(3, 1, 2), sketch.choose(4, 2)
    options = sketch.choose(
        f", padding={kernel // 2}",
        *("", ", stride=2", ", dilation=2, padding=2", ", padding='same'", ", bias=False"),
        *(", padding=1, padding_mode='circular'", ", padding=1, padding_mode='replicate'"),
    )
    layer = sketch.layer(f"nn.Conv{rank}d({value.size(1)}, {channels}, {kernel}{options})", "conv")
    sketch.let(f"{layer}({value})")


def depthwise_convolution(sketch: Sketch) -> None:
    value = _channels(sketch, 3)
    channels = value.size(1)
    layer = sketch.layer(f"nn.Conv1d({channels}, {channels}, 3, padding=1, groups={channels})", "conv")
    sketch.let(f"{layer}({value})")


def transposed_convolution(sketch: Sketch) -> None:
    rank = sketch.choose(1, 2)
    value = _channels(sketch, rank + 2)
    options = sketch.choose("2, stride=2", "3", "3, stride=2, output_padding=1")
    layer = sketch.layer(f"nn.ConvTranspose{rank}d({value.size(1)}, 2, {options})", "deconv")
    sketch.let(f"{layer}({value})")


def pooling(sketch: Sketch) -> None:
    rank = sketch.choose(1, 2)
    value = sketch.pick(lambda v: v.floating and v.rank == rank + 2)
    call = sketch.choose(
        *("F.max_pool{}d({}, 2)", "F.avg_pool{}d({}, 2)", "F.adaptive_avg_pool{}d({}, 1)"),
        *("F.avg_pool{}d({}, 3, stride=1, padding=1)", "F.max_pool{}d({}, 3, stride=2, padding=1)"),
        *("F.adaptive_max_pool{}d({}, 1)", "F.adaptive_avg_pool{}d({}, 2)", "F.max_pool{}d({}, 2, ceil_mode=True)"),
    )
    sketch.let(call.format(rank, value))


def resize(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank in (3, 4))
    modes = {3: ("nearest", "linear"), 4: ("nearest", "bilinear")}[value.rank]
    how = sketch.choose("scale_factor=2.0", "size=4" if value.rank == 3 else "size=(4, 5)")
    sketch.let(f'F.interpolate({value}, {how}, mode="{sketch.choose(*modes)}")')


def padding(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank >= 2)
    how = sketch.choose("(1, 2)", "(0, 1), value=0.5", "(1, 0, 0, 2)", '(1, 1), mode="reflect"', "(-1, 1)")
    sketch.let(f"F.pad({value}, {how})")


def embedding(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.integral and v.rank > 0)
    layer = sketch.layer(f"nn.Embedding(12, {sketch.choose(4, 6)})", "table")
    index = sketch.choose("{}", "{} % 12", "{}.clamp(0, 11)").format(value)
    sketch.let(f"{layer}({index})")


def one_hot(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.integral and v.rank > 0)
    dtype = sketch.dtype
    sketch.let(f"F.one_hot({value}.clamp(0, 11), 12).to({dtype})")


def attention(sketch: Sketch) -> None:
    value = _features(sketch, 3)
    heads = sketch.choose(2, 1)
    _even(value.size(-1) if heads == 2 else 2)
    layer = sketch.layer(f"nn.MultiheadAttention({value.size(-1)}, {heads}, batch_first=True)", "attention")
    weights = sketch.new()
    options = sketch.choose("", ", need_weights=False")
    if options:
        sketch.let(f"{layer}({value}, {value}, {value}{options})[0]")
    else:
        sketch.add([f"{sketch.new()}, {weights} = {layer}({value}, {value}, {value})"])


def scaled_dot_product(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank >= 3)
    options = sketch.choose("", ", is_causal=True", ", scale=0.5")
    sketch.let(f"F.scaled_dot_product_attention({value}, {value}, {value}{options})")


def transformer_layer(sketch: Sketch) -> None:
    value = _features(sketch, 3)
    width = _even(value.size(-1))
    made = f"nn.TransformerEncoderLayer({width}, 2, 8, dropout=0.0, batch_first=True, norm_first=True)"
    layer = sketch.layer(made, "encoder")
    sketch.let(f"{layer}({value})")


def recurrent(sketch: Sketch) -> None:
    value = _features(sketch, 3)
    kind = sketch.choose("GRU", "LSTM", "RNN")
    options = sketch.choose("", ", num_layers=2", ", bidirectional=True")
    first = sketch.choose(", batch_first=True", "")
    layer = sketch.layer(f"nn.{kind}({value.size(-1)}, 3{options}{first})", kind.lower())
    state = f"({sketch.new('h')}, {sketch.new('c')})" if kind == "LSTM" else sketch.new("h")
    sketch.add([f"{sketch.new()}, {state} = {layer}({value})"])


def cell_in_a_loop(sketch: Sketch) -> None:
    """Run a recurrent cell along a dimension, step by step."""
    value = _features(sketch, 3)
    layer = sketch.layer(f"nn.GRUCell({value.size(-1)}, 3)", "cell")
    state = sketch.new()
    sketch.add(
        [
            f"{state} = {value}.new_zeros({value}.shape[0], 3)",
            f"for step in range({value}.shape[1]):",
            f"    {state} = {layer}({value}[:, step], {state})",
        ]
    )


def bilinear(sketch: Sketch) -> None:
    value = _features(sketch, 2, 3)
    width = value.size(-1)
    layer = sketch.layer(f"nn.Bilinear({width}, {width}, 2)", "bilinear")
    sketch.let(f"{layer}({value}, {value})")


def sequential(sketch: Sketch) -> None:
    value = _features(sketch)
    width = value.size(-1)
    inner = sketch.choose("nn.ReLU()", "nn.GELU()", "nn.Dropout(0.5)")
    layer = sketch.layer(f"nn.Sequential(nn.Linear({width}, 5), {inner}, nn.Linear(5, {width}))", "block")
    sketch.let(f"{value} + {layer}({value})")


def list_of_layers(sketch: Sketch) -> None:
    """Loop over a ModuleList."""
    value = _features(sketch)
    width = value.size(-1)
    layer = sketch.layer(f"nn.ModuleList([nn.Linear({width}, {width}) for _ in range(2)])", "layers")
    result = sketch.new()
    lines = [f"{result} = {value}", f"for one in {layer}:", f"    {result} = torch.tanh(one({result}))"]
    sketch.add(lines)


LAYERS = (
    *(linear, activation, norm_of_features, norm_of_channels, convolution, pooling, embedding, softmax, sequential),
    *(attention, scaled_dot_product, recurrent, transformer_layer, depthwise_convolution, transposed_convolution),
    *(gated, parametrised_activation, resize, padding, one_hot, cell_in_a_loop, bilinear, list_of_layers),
)
