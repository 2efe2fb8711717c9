"""Statements that move, cut and join values, and that compute with sizes."""

from __future__ import annotations

from fuzz.sketch import DoesNotRun, Sketch, Value


def _tensor(sketch: Sketch, rank: int = 1) -> Value:
    return sketch.pick(lambda v: v.tensor and v.rank >= rank)


def _alike(sketch: Sketch, value: Value) -> Value:
    """Return a value of the same dtype and rank."""
    return sketch.pick(lambda v: v.tensor and (v.dtype, v.rank) == (value.dtype, value.rank))


def reshape(sketch: Sketch) -> None:
    value = _tensor(sketch)
    forms = [
        *("{0}.reshape({0}.shape[0], -1)", "{0}.flatten(1)", "{0}.view({0}.size(0), -1)", "{0}.reshape(-1)"),
        *("{0}.unsqueeze(1)", "{0}.unsqueeze(-1)", "{0}[:, None]", "{0}.squeeze(-1)", "torch.atleast_3d({0})"),
        *("{0}.view(-1, {0}.size(-1))", "{0}.view(-1, {0}.shape[-1], 1)"),
        "{0}.reshape({0}.shape[0], {0}.numel() // {0}.shape[0])",
        *("{0}.contiguous().view({0}.shape)", "{0}.flatten(0, 1)", "{0}.reshape(1, *{0}.shape)"),
    ]
    if value.rank > 1 and value.static(-1) and value.size(-1) % 2 == 0:
        forms += [f"{{0}}.view({{0}}.shape[0], -1, {value.size(-1) // 2})", "{0}.unflatten(-1, (2, -1))"]
    sketch.let(sketch.choose(*forms).format(value))


def transpose(sketch: Sketch) -> None:
    value = _tensor(sketch, 2)
    order = ", ".join(map(str, (*range(1, value.rank), 0)))
    forms = ("{0}.transpose(-1, -2)", "{0}.transpose(0, 1)", f"{{0}}.permute({order})", "{0}.movedim(-1, 0)", "{0}.mT")
    sketch.let(sketch.choose(*forms).format(value))


def join(sketch: Sketch) -> None:
    one = _tensor(sketch)
    other = _alike(sketch, one)
    form = sketch.choose(
        "torch.cat([{0}, {1}], {2})", "torch.stack([{0}, {1}], {2})", "torch.cat([{0}, {1}, {0}], {2})"
    )
    sketch.let(form.format(one, other, sketch.axis(one)))


def split(sketch: Sketch) -> None:
    value = _tensor(sketch)
    axis = sketch.axis(value)
    name = sketch.new()
    first, second = sketch.new(), sketch.new()
    forms = [
        f"{name} = {value}.chunk(2, {axis})[0]",
        f"{name} = torch.split({value}, 2, {axis})[-1]",
        f"{name} = {value}.unbind({axis})[-1]",
        f"{name} = torch.tensor_split({value}, 2, {axis})[0]",
    ]
    if value.static(axis) and value.size(axis) > 1:
        forms += [
            f"{first}, {second} = {value}.chunk(2, {axis})",
            f"{first}, {second} = torch.split({value}, [1, {value.size(axis) - 1}], {axis})",
        ]
    sketch.add([sketch.choose(*forms)])


def index(sketch: Sketch) -> None:
    value = _tensor(sketch)
    forms = ["{0}[0]", "{0}[..., -1]", "{0}[..., :1]", "{0}[1:]", "{0}[..., 1:]", "{0}[::2]", "{0}[None]", "{0}[-1:]"]
    if value.rank > 1:
        forms += [
            "{0}[:, 0]",
            "{0}[:, -1]",
            "{0}[:, 1:]",
            "{0}[:, ::2]",
            "{0}[:, : {0}.shape[1] // 2 + 1]",
            "{0}[:, None]",
        ]
        forms += [
            "{0}[:, [0, -1]]",
            "{0}[:, torch.arange({0}.shape[1] - 1, -1, -1)]",
            "{0}[:, -2:]",
            "{0}.select(1, 0)",
        ]
        forms += ["{0}[torch.arange({0}.shape[0]), 0]", "{0}.narrow(1, 0, {0}.shape[1] - 1)"]
    sketch.let(sketch.choose(*forms).format(value))


def gather(sketch: Sketch) -> None:
    """Gather with existing values as indices."""
    value = _tensor(sketch)
    which = sketch.pick(lambda v: v.integral and v.rank > 0)
    axis = sketch.axis(value)
    size = f"{value}.shape[{axis}]"
    form = sketch.choose(
        f"torch.gather({value}, {axis}, {which} % {size})",
        f"torch.index_select({value}, {axis}, {which}.reshape(-1) % {size})",
        f"{value}[{which} % {value}.shape[0]]",
        f"torch.take_along_dim({value}, {which} % {size}, {axis})",
    )
    sketch.let(form)


def repeat(sketch: Sketch) -> None:
    value = _tensor(sketch)
    ones = ", ".join("1" for _ in range(value.rank - 1))
    forms = (
        "{0}.unsqueeze(0).expand(3, " + ", ".join("-1" for _ in range(value.rank)) + ")",
        f"{{0}}.repeat({ones + ', ' if ones else ''}2)",
        "{0}.repeat_interleave(2, dim=0)",
        "torch.tile({0}, (2,))",
        "{0}.flip(0)",
        "{0}.roll(1, -1)",
        "{0}.unfold(-1, 2, 1)",
        "torch.rot90({0}, 1, (0, -1))",
    )
    sketch.let(sketch.choose(*forms).format(value))


def number_of_a_size(sketch: Sketch) -> None:
    """Make a Python number that depends on a size."""
    value = _tensor(sketch)
    size = f"{value}.shape[{sketch.axis(value)}]"
    forms = ("{}", "{} // 2 + 1", "{} * 2", "{} - 1", "({} + 3) // 4", "min({}, 3)", "max({}, 2)", "{} % 3 + 1")
    sketch.add([f"{sketch.new('n')} = {sketch.choose(*forms).format(size)}"])


def cut_to_a_number(sketch: Sketch) -> None:
    number = sketch.pick(lambda v: v.dtype is int)
    value = _tensor(sketch)
    forms = ("{0}[:{1}]", "{0}[..., :{1}]", "{0}[{1} - 1]", "{0}[..., -{1}:]", "{0}.expand({1}, *{0}.shape)")
    sketch.let(sketch.choose(*forms).format(value, number))


def made_to_a_size(sketch: Sketch) -> None:
    """Make a new tensor whose size depends on a value's size."""
    value = _tensor(sketch)
    size, dtype = f"{value}.shape[{sketch.axis(value)}]", sketch.dtype
    forms = (
        f"torch.arange({size})",
        f"torch.arange({size}, dtype={dtype}) / {size}",
        f"torch.ones({size}, 2, dtype={dtype})",
        f"torch.full(({size},), 0.5, dtype={dtype})",
        f"torch.linspace(0.0, 1.0, {size}, dtype={dtype})",
        f"torch.tril(torch.ones({size}, {size}, dtype={dtype}))",
        f"torch.eye({size}, dtype={dtype})",
        f"torch.zeros_like({value})",
        f"{value}.new_ones({size})",
    )
    sketch.let(sketch.choose(*forms))


def divided_by_a_size(sketch: Sketch) -> None:
    value = sketch.pick(lambda v: v.floating and v.rank > 0)
    size = f"{value}.shape[{sketch.axis(value)}]"
    form = sketch.choose("{0} / {1}", "{0} * {1}", "{0} / math.sqrt({1})", "{0} + {1} // 2", "{0} * ({1} ** -0.5)")
    sketch.let(form.format(value, size))


def positions(sketch: Sketch) -> None:
    """Cut a table of positions to a length."""
    value = sketch.pick(lambda v: v.floating and v.rank > 1 and v.static(-1))
    layer = sketch.layer(f"nn.Embedding(64, {value.size(-1)})", "positions")
    form = sketch.choose("{0} + {1}(torch.arange({0}.shape[-2]))", "{0} + {1}.weight[: {0}.shape[-2]]")
    sketch.let(form.format(value, layer))


def windows(sketch: Sketch) -> None:
    """Pad to a multiple and fold into windows."""
    value = sketch.pick(lambda v: v.floating and v.rank == 3)
    if value.static(1):
        raise DoesNotRun
    padded = sketch.new()
    lines = [
        f"{padded} = F.pad({value}, (0, 0, 0, -{value}.shape[1] % 4))",
        f"{sketch.new()} = {padded}.reshape({value}.shape[0], -1, 4, {value}.shape[2])",
    ]
    sketch.add(lines)


def pieces(sketch: Sketch) -> None:
    """Cut a dynamic dimension into pieces of one length, which allows only multiples of it."""
    value = sketch.pick(lambda v: v.tensor and v.rank >= 2)
    factor = sketch.choose(2, 4)
    axis = next((a for a in range(value.rank - 1, 0, -1) if not value.static(a) and _divides(value, a, factor)), 0)
    if not axis:
        raise DoesNotRun
    whole = [f"{value}.shape[{a}]" for a in range(value.rank)]
    cut = ", ".join([*whole[:axis], "-1", str(factor), *whole[axis + 1 :]])
    counted = ", ".join([*whole[:axis], f"{whole[axis]} // {factor}", str(factor), *whole[axis + 1 :]])
    forms = (
        f"{value}.unflatten({axis}, (-1, {factor}))",
        f"{value}.reshape({cut})",
        f"{value}.contiguous().view({counted})",
        f"{value}.unflatten({axis}, (-1, {factor})).sum({axis + 1})",
    )
    sketch.let(sketch.choose(*forms))


def _divides(value: Value, axis: int, factor: int) -> bool:
    return all(tensor.shape[axis] % factor == 0 for tensor in value.held)


def halved_and_joined(sketch: Sketch) -> None:
    """Halve the last dimension repeatedly, then double each result and join it with its source."""
    value = sketch.pick(lambda v: v.floating and v.rank == 3 and not v.static(-1))
    low, up = sketch.new(), sketch.new()
    times = sketch.choose(1, 2)
    pool = sketch.choose("F.avg_pool1d({}, {})", "F.max_pool1d({}, {})").format(value, 2**times)
    double = sketch.choose("{}.repeat_interleave({}, -1)", 'F.interpolate({}, scale_factor={}.0, mode="nearest")')
    join = sketch.choose("torch.cat([{}, {}], 1)", "{} + {}").format(value, up)
    sketch.add([f"{low} = {pool}", f"{up} = {double.format(low, 2**times)}", f"{sketch.new()} = {join}"])


def pooled_to_the_ceiling(sketch: Sketch) -> None:
    """Pool a dynamic dimension in ceil mode, then read its size."""
    value = sketch.pick(lambda v: v.floating and v.rank == 3 and not v.static(-1))
    pooled = sketch.new()
    form = sketch.choose("{0}.mean(-1)", "{0}[..., : {0}.shape[-1] // 2 + 1]", "F.pad({0}, (1, 1))", "{0}.flatten(1)")
    sketch.add([f"{pooled} = F.max_pool1d({value}, 2, ceil_mode=True)", f"{sketch.new()} = {form.format(pooled)}"])


SHAPES = (
    *(reshape, transpose, join, split, index, repeat, made_to_a_size, number_of_a_size, cut_to_a_number, gather),
    *(divided_by_a_size, positions, windows),
    *(pieces, halved_and_joined, pooled_to_the_ceiling) * 4,
)
