# mypy: disable-error-code="no-any-return,has-type,operator,assignment"
"""TorchScript interpreted in Python: it returns the same, and torch.export keeps its dimensions dynamic."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import pytest
import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.utils import _pytree as pytree

from exporter.core.errors import ExportError
from exporter.model import flattening
from exporter.model.torchscript.interpreter import Interpreter, taken_over
from exporter.model.torchscript.interpreter.numbers import NUMBERS, Number

# torch.jit.script warns about an annotation in torch.fx.GraphModule, which is not ours.
pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")

Make = Callable[[int], tuple[Any, ...]]


class LoopOverSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(x.size(0), 6)
        outputs: List[Tensor] = []
        for step in range(x.size(1)):
            hidden = self.cell(x[:, step], hidden)
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class WhileAndBranch(nn.Module):
    def forward(self, x: Tensor, mode: str = "wide") -> Tensor:
        assert x.dim() == 2, f"two dimensions, not {x.dim()}"
        size, steps = 1, 0
        while size < x.size(1):
            size, steps = size * 2, steps + 1
        if x.size(1) > 100:
            raise ValueError("too wide: {}".format(x.shape))  # noqa: UP032  TorchScript's own form
        if mode == "wide" and steps > 1:
            return nn.functional.pad(x, (0, size - x.size(1))) * float(steps) / 2
        return x.reshape(x.size(0) * 2, -1)


class Containers(nn.Module):
    def forward(self, given: Dict[str, Tensor]) -> Tuple[Dict[str, Tensor], List[Tensor]]:
        x = given["x"]
        columns: List[Tensor] = []
        sizes: List[int] = []
        for i in range(x.size(1) - 1, -1, -1):
            columns.append(x[:, i])
            sizes.append(i)
        columns.insert(0, x[:, 0])
        last = columns.pop()
        columns.extend([last, last * 2])
        columns[0] = last + 1
        sizes.reverse()
        made = {"last": columns[-1]}
        if "y" in given:
            made["y"] = given["y"] + sizes[-1]
        for index, (column, size) in enumerate(zip(columns, sizes)):  # noqa: B905
            made["last"] = made["last"] + column * size * index
        for key, value in made.items():
            columns.append(value * len(key))
        return made, [torch.stack(columns[1:], 1), torch.stack(columns, 1)[:, ::2]]


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        output, (hidden, _) = self.lstm(x)
        return output, hidden


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.table(ids)
        output, _ = self.attention(hidden, hidden, hidden, key_padding_mask=mask == 0)
        return output.masked_fill(mask.unsqueeze(-1) == 0, 0.0)


class ConvNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean = torch.randn(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)).relu_().flatten(1)


class SizesAsNumbers(nn.Module):
    """When traced, its sizes become tensors, and computations with sizes become tensor arithmetic."""

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        batch, channels, height, width = x.shape
        y = nn.functional.interpolate(x, size=[int(height * 1.5), width // 2], mode="bilinear")
        ramp = torch.arange(height // 2, device=x.device).view(1, 1, -1, 1)
        pooled = nn.functional.adaptive_avg_pool2d(y, (height // 2, 1)) * (batch / 2) + ramp
        return y.reshape(batch, channels, -1).transpose(1, 2), pooled, torch.full([batch, 2], float(height))


class BranchOnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0 and not bool((x > 100).any()):  # noqa: SIM108  one branch each
            y = self.linear(x)
        else:
            y = x - 1
        return y


class Streaming(nn.Module):
    """Sets its own attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.hidden * 0.5 + x.mean(0)
        return x + self.hidden


class Times(nn.Module):
    """Has a number as an argument."""

    def forward(self, x: Tensor, times: int) -> Tensor:
        return x * times


class Around(nn.Module):
    """Python code around TorchScript, which uses more of it than its outputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.twice = inner, nn.ModuleList([inner])

    def forward(self, x: Tensor) -> Tensor:
        return self.twice[0](self.inner(x)) * self.inner.scale


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), 2.5

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.shape[0] > 2 else -self.linear(x)

    @torch.jit.export
    def other(self, x: Tensor) -> Tensor:
        return x + 1


def test_torchscript_is_interpreted_wherever_it_is() -> None:
    scripted = torch.jit.script(Scaled())
    wanted = Around(scripted)
    model = taken_over(Around(scripted))
    assert isinstance(model.inner, Interpreter)
    assert model.inner is model.twice[0]
    assert isinstance(taken_over(scripted), Interpreter)
    assert not any(parameter.requires_grad for parameter in scripted.parameters())
    plain = nn.Linear(2, 2)
    assert taken_over(plain) is plain
    program = torch.export.export(model, (torch.randn(5, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC(min=3)},))
    with torch.no_grad():
        for rows in (2, 3, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(model(x), wanted(x))
            if rows > 2:
                torch.testing.assert_close(program.module()(x), wanted(x))
        torch.testing.assert_close(model.inner.other(x), x + 1)
        assert not hasattr(model.inner, "missing")
        assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_the_original_program_gets_the_current_weights() -> None:
    model = taken_over(torch.jit.script(Scaled()))
    model.get_parameter("linear.weight").data.mul_(2)
    copied = copy.deepcopy(model)
    copied.get_parameter("linear.bias").data.zero_()
    x = torch.randn(5, 4)
    for one in (model, copied):
        torch.testing.assert_close(one.program()(x), one(x))
    assert not model.renamed
    assert Interpreter(torch.jit.script(Scaled()), ["y"]).renamed


class Counting(nn.Module):
    """Changes a buffer in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = x.clone()
        y[:, 0] = 0
        y[:, 1:] += 1
        y[y > 2] = 5.0
        return y


@torch.jit.interface
class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[empty-body]
        pass


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ThroughAnInterface(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Doubling()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.forward(x)


ThroughAnInterface.__annotations__ = {"layer": Layer}  # TorchScript needs the class itself, not its name


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Forked(nn.Module):
    """A fork, torch.no_grad, a named tuple, an optional argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Optional[Tensor] = None, factor: int = 3) -> Pair:
        future = torch.jit.fork(self.linear, x)
        with torch.no_grad():
            doubled = x * 2
        if y is not None:
            doubled = doubled + y
        return Pair(torch.jit.wait(future), doubled * factor)


class Tensors(nn.Module):
    """Tensors made from sizes, casts, indices."""

    def forward(self, x: Tensor, index: Tensor) -> Tuple[Tensor, Tensor, Tensor, float]:
        sizes = torch.tensor([x.size(0), x.size(1)])
        steps = torch.arange(0, x.size(0), dtype=torch.float32)
        cast = x.to("cpu", torch.float64).type_as(x)
        return cast[index] * sizes[1] + torch.tensor(x.size(0)), steps, x[..., None, ::2].round(), x.size(0) ** 2


def rows(*shape: int) -> Make:
    return lambda batch: (torch.randn(batch, *shape),)


def script(module: nn.Module) -> torch.jit.ScriptModule:
    scripted: torch.jit.ScriptModule = torch.jit.script(module.eval())
    return scripted


def trace(module: nn.Module, make: Make) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracerWarning)
        traced: torch.jit.ScriptModule = torch.jit.trace(module.eval(), make(2), check_trace=False)
    return traced


def tokens(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 11, (batch, 5)), torch.ones(batch, 5)


def indexed(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 4), torch.arange(batch) % 2


CASES: dict[str, tuple[Callable[[], torch.jit.ScriptModule], Make]] = {
    "loop": (lambda: script(LoopOverSizes()), rows(5, 4)),
    "while": (lambda: script(WhileAndBranch()), rows(5)),
    "containers": (
        lambda: script(Containers()),
        lambda batch: ({"x": torch.randn(batch, 4), "y": torch.randn(batch)},),
    ),
    "lstm": (lambda: script(Lstm()), rows(5, 4)),
    "lstm traced": (lambda: trace(Lstm(), rows(5, 4)), rows(5, 4)),
    "attention": (lambda: script(Attention()), tokens),
    "norm": (lambda: script(ConvNorm()), rows(3, 6, 6)),
    "norm frozen": (lambda: torch.jit.freeze(script(ConvNorm())), rows(3, 6, 6)),
    "norm traced": (lambda: trace(ConvNorm(), rows(3, 6, 6)), rows(3, 6, 6)),
    "sizes": (lambda: script(SizesAsNumbers()), rows(3, 8, 8)),
    "values": (lambda: script(BranchOnValues()), rows(4)),
    "in place": (lambda: script(Counting()), rows(4)),
    "interface": (lambda: script(ThroughAnInterface()), rows(4)),
    "fork": (lambda: script(Forked()), rows(4)),
    "tensors": (lambda: script(Tensors()), indexed),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[torch.jit.ScriptModule, Make]:
    torch.manual_seed(0)
    make_program, make = CASES[request.param]
    return make_program(), make


def assert_same(got: Any, want: Any) -> None:
    """Assert that the leaves are the same: numbers exactly, tensors up to rounding."""
    gotten, wanted = pytree.tree_leaves(got), pytree.tree_leaves(want)
    assert len(gotten) == len(wanted)
    for a, b in zip(gotten, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))


@pytest.mark.parametrize("interpreted", [False, True])
@torch.no_grad()
def test_it_returns_the_same_as_torchscript(
    case: tuple[torch.jit.ScriptModule, Make], interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, make = case
    module = Interpreter(program)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: interpreted)
    for batch in (2, 1, 5):
        inputs = make(batch)
        assert_same(module(*inputs), program(*inputs))


@torch.no_grad()
def test_export_keeps_the_batch_dynamic(case: tuple[torch.jit.ScriptModule, Make]) -> None:
    program, make = case
    example, batch = make(3), torch.export.Dim("batch", min=1, max=64)
    shapes = pytree.tree_map(lambda _: {0: batch}, example)
    exported = torch.export.export(Interpreter(program), example, dynamic_shapes=(shapes,)).module()
    for size in (1, 4, 7):
        inputs = make(size)
        assert_same(exported(*inputs), program(*inputs))


def test_both_sides_of_a_branch_on_values_survive_export() -> None:
    program = script(BranchOnValues())
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        exported = torch.export.export(Interpreter(program), (torch.ones(2, 4),), dynamic_shapes=(({0: batch},),))
        for x in (torch.ones(3, 4), -torch.ones(3, 4), torch.full((3, 4), 1000.0)):
            assert_same(exported.module()(x), program(x))


@torch.no_grad()
def test_sizes_that_were_traced_as_tensors_stay_dynamic() -> None:
    """The tracer bakes some of them in. Those that it kept as tensor arithmetic must not become data-dependent."""
    make: Make = lambda batch: (torch.randn(batch, 3, 8, 8),)  # noqa: E731
    program = trace(SizesAsNumbers(), make)
    example, batch = make(3), torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(Interpreter(program), example, dynamic_shapes=(({0: batch},),))
    assert not exported.graph.find_nodes(op="call_function", target=torch.ops.aten.item.default)
    for size in (1, 5):
        inputs = make(size)
        assert_same(exported.module()(*inputs), program(*inputs))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        hidden = self.table(ids) + torch.arange(length, device=ids.device)[None, :, None]
        heads = hidden.view(batch, length, 2, 2).transpose(1, 2)
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        scores = (heads @ heads.transpose(-1, -2)).masked_fill(causal, float("-inf")).softmax(-1)
        return (scores @ heads).transpose(1, 2).reshape(batch, length, 4)


@pytest.mark.parametrize("traced", [False, True])
@torch.no_grad()
def test_two_dynamic_dimensions(traced: bool) -> None:
    make: Make = lambda batch: (torch.randint(0, 11, (batch, 5)),)  # noqa: E731
    program = trace(Positions(), make) if traced else script(Positions())
    shape = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=1, max=64)}
    exported = torch.export.export(Interpreter(program), make(3), dynamic_shapes=((shape,),)).module()
    for batch, length in ((1, 1), (2, 9), (7, 4)):
        ids = torch.randint(0, 11, (batch, length))
        assert_same(exported(ids), program(ids))


@torch.no_grad()
def test_a_program_that_sets_its_attributes() -> None:
    example, batch = torch.randn(3, 4), torch.export.Dim("batch", min=1, max=64)
    program, again = script(Streaming()), script(Streaming())
    exported = torch.export.export(Interpreter(program), (example,), dynamic_shapes=(({0: batch},),)).module()
    interpreter = Interpreter(again)
    for x in (torch.randn(1, 4), torch.randn(5, 4)):
        want = program(x)
        assert_same(exported(x), want)
        assert_same(interpreter(x), want)


def test_weights_keep_their_names() -> None:
    model = ConvNorm().eval()
    interpreter = Interpreter(script(model))
    want = {name: tensor for name, tensor in model.state_dict().items() if "tracked" not in name}
    got = {name: tensor for name, tensor in interpreter.state_dict().items() if "tracked" not in name}
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert {name for name, _ in interpreter.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert not any(parameter.requires_grad for parameter in interpreter.parameters())


class Misnamed(nn.Module):
    """A submodule with a name that the interpreter reserves."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.arguments(x)


@torch.no_grad()
def test_a_reserved_name() -> None:
    program = script(Misnamed())
    interpreter = Interpreter(program)
    x = torch.randn(3, 4)
    assert_same(interpreter(x), program(x))
    assert "arguments_.weight" in interpreter.state_dict()


@torch.no_grad()
def test_constants_are_cast_with_the_module() -> None:
    frozen = torch.jit.freeze(script(ConvNorm()))
    interpreter, x = Interpreter(frozen).double(), torch.randn(2, 3, 6, 6)
    got = interpreter(x.double())
    assert got.dtype == torch.float64
    torch.testing.assert_close(got.float(), frozen(x))


@torch.no_grad()
def test_a_traced_precision_follows_the_weights() -> None:
    """A float32 hidden state with float64 weights crashed torch 2.11 with a segmentation fault."""
    program = trace(Lstm(), rows(5, 4))
    interpreter, x = Interpreter(program).double(), torch.randn(3, 5, 4)
    output, hidden = interpreter(x.double())
    assert output.dtype == hidden.dtype == torch.float64
    torch.testing.assert_close(output.float(), program(x)[0])


@pytest.mark.parametrize("module", [Counting, Streaming])
@torch.no_grad()
def test_a_copy_has_its_own_buffers(module: type[nn.Module]) -> None:
    interpreter, x = Interpreter(script(module())), torch.randn(3, 4)
    made = copy.deepcopy(interpreter)
    first = made(x)
    assert_same(interpreter(x), first)
    assert made.state_dict().keys() == interpreter.state_dict().keys()


class Narrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.to(torch.float32))


@torch.no_grad()
def test_a_cast_of_the_inputs_stays() -> None:
    program, x = script(Narrowing()), torch.randn(3, 4, dtype=torch.float64)
    assert_same(Interpreter(program)(x), program(x))


class OnADevice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(4, device=torch.device("cpu"))


def test_the_device_follows_the_inputs() -> None:
    interpreter = Interpreter(script(OnADevice()))
    assert interpreter(torch.ones(2, 4, device="meta")).device.type == "meta"
    assert_same(interpreter(torch.ones(2, 4)), torch.ones(2, 4) + torch.arange(4))


def test_inputs_and_outputs_can_be_renamed() -> None:
    program = script(Lstm())
    interpreter, x = Interpreter(program, ["waves"], ["output", "hidden"]), torch.randn(2, 5, 4)
    got = interpreter(waves=x)
    assert list(got) == ["output", "hidden"]
    assert_same(list(got.values()), list(program(x)))
    single = Interpreter(script(OnADevice()), ["x"], ["sum"])
    assert list(single(x=torch.ones(1, 4))) == ["sum"]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"missing: \['x'\]"),
        ((), {"x": torch.ones(1, 4), "z": 1}, r"unknown: \['z'\]"),
        ((torch.ones(1, 4),) * 4, {}, "forward takes x, y, factor"),
    ],
)
def test_wrong_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Interpreter(script(Forked()))(*args, **kwargs)


@torch.no_grad()
def test_defaults_and_keywords() -> None:
    program = script(Forked())
    interpreter, x = Interpreter(program), torch.randn(2, 4)
    assert_same(interpreter(x, factor=5, y=x), program(x, x, 5))


class Unknown(nn.Module):
    def forward(self, x: Tensor, text: str = "a,b") -> Tensor:
        parts = text.split(",")
        return x + len("-".join(parts))


def test_unsupported_nodes_are_named_with_their_lines() -> None:
    program = script(Unknown())
    interpreter, x = Interpreter(program), torch.ones(3)
    assert_same(interpreter(x), program(x))  # TorchScript itself supports them
    names = r"aten::split\.str \(.*test_interpreter\.py:\d+\); aten::join \(.*\)"
    with pytest.raises(ExportError, match=names) as raised:
        torch.export.export(interpreter, (x,))
    assert raised.value.remedy


class OnlyOnValues(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() > 1):
            x = x / 2
        return x


def test_a_loop_on_values_is_an_error_of_torch_export() -> None:
    with pytest.raises(torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode):
        torch.export.export(Interpreter(script(OnlyOnValues())), (torch.ones(3),))


@pytest.mark.parametrize("name", ["loop", "values", "containers", "fork"])
@torch.no_grad()
def test_script_and_trace_keep_the_program(name: str) -> None:
    """Scripting it returns the program, and tracing it keeps the loops and branches."""
    make_program, make = CASES[name]
    program = make_program()
    interpreter = Interpreter(program)
    scripted = torch.jit.script(interpreter)
    traced = None if name == "containers" else torch.jit.trace(interpreter, make(2), strict=False, check_trace=False)
    for batch in (1, 4):
        inputs = make(batch)
        assert_same(scripted(*inputs), program(*inputs))
        if traced is not None:
            assert_same(traced(*inputs), program(*inputs))


def test_inputs_of_a_program_have_the_names_of_its_arguments() -> None:
    found = flattening.flatten_inputs(Interpreter(script(Times())), (torch.ones(2, 4), 3))
    assert (found.names, found.constants) == (("x",), {"times": 3})


@torch.no_grad()
def test_a_program_with_state_can_be_cast_and_scripted() -> None:
    program, x = script(Streaming()), torch.ones(2, 4)
    interpreter = Interpreter(program).double()
    assert interpreter(x.double()).dtype == torch.float64
    assert_same(torch.jit.script(Interpreter(script(Streaming())))(x), script(Streaming())(x))


@pytest.mark.parametrize(
    ("kind", "values", "want"),
    [
        ("aten::add", (Number(3, torch.int64), 2, 4), Number(11, torch.int64)),
        ("aten::div", (Number(3, torch.int64), Number(2, torch.int64)), Number(1.5, torch.float32)),
        ("aten::div", (Number(-3, torch.int64), 2, "floor"), Number(-2, torch.int64)),
        ("aten::div", (Number(-3, torch.int64), 2, "trunc"), Number(-1, torch.int64)),
        ("aten::mul", (Number(3, torch.int64), 0.1), Number(0.30000001192092896, torch.float32)),
        ("aten::floor_divide", (Number(7, torch.int64), Number(2, torch.int64)), Number(3, torch.int64)),
        ("aten::lt", (Number(7, torch.int64), 2), Number(False, torch.bool)),
        ("aten::ceil", (Number(1.5, torch.float32),), Number(2.0, torch.float32)),
    ],
)
def test_arithmetic_on_numbers_equals_that_on_tensors(kind: str, values: tuple[Any, ...], want: Number) -> None:
    assert NUMBERS[kind](*values) == want
    tensors = [value.tensor() if isinstance(value, Number) else value for value in values]
    name = kind.removeprefix("aten::")
    extra = {"add": "alpha", "div": "rounding_mode"}.get(name, "")
    by_torch = getattr(torch, name)(*tensors[:2], **dict(zip([extra], tensors[2:], strict=False)))
    assert (by_torch.item(), by_torch.dtype) == (want.value, want.dtype)


def test_a_traced_torchvision_network() -> None:
    torchvision = pytest.importorskip("torchvision")
    make = rows(3, 64, 64)
    with torch.no_grad():
        program = torch.jit.freeze(trace(torchvision.models.resnet18(weights=None), make))
        batch = torch.export.Dim("batch", min=1, max=64)
        exported = torch.export.export(Interpreter(program), make(2), dynamic_shapes=(({0: batch},),))
        for size in (1, 3):
            inputs = make(size)
            torch.testing.assert_close(exported.module()(*inputs), program(*inputs), rtol=1e-4, atol=1e-4)
    assert torch.ops.aten._convolution.default not in {node.target for node in exported.graph.nodes}
