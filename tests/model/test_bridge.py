"""The bridge from an exported program to TorchScript: bit-identical to eager, at shapes other than the example."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional
from torch.utils import _pytree as pytree

from exporter.core.errors import ExportError
from exporter.model.torchscript import bridge, lowering

Function = Callable[[torch.Tensor], Any]
SHAPES = ((3, 4), (2, 4), (5, 4))  # the first is the example


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def exported(model: nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model.eval(), (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def reloaded(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    loaded: torch.jit.ScriptModule = torch.jit.load(file)
    return loaded


def leaves(output: Any) -> list[torch.Tensor]:
    found = [leaf for leaf in pytree.tree_leaves(output) if leaf is not None]
    return [leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf) for leaf in found]


def assert_same(got: tuple[torch.Tensor, ...], want: Any, rounding: float = 0.0) -> None:
    wanted = leaves(want)
    assert [(g.dtype, g.shape) for g in got] == [(w.dtype, w.shape) for w in wanted]
    torch.testing.assert_close(list(got), wanted, rtol=0, atol=rounding, equal_nan=True)


def check(model: nn.Module, *inputs: torch.Tensor, rounding: float = 0.0) -> torch.jit.ScriptModule:
    """Bridge the model at the first input; assert that it equals eager at all inputs, frozen or not, after a reload."""
    scripted = bridge.from_exported(exported(model, inputs[0]))
    for loaded in (reloaded(scripted), reloaded(torch.jit.freeze(scripted))):
        for x in inputs:
            with torch.no_grad():
                assert_same(loaded(x.clone()), model(x.clone()), rounding)
    return scripted


def random(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


class State(nn.Module):
    """A parameter, both kinds of buffers, a plain tensor and a literal, in modules whose names are not identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.constant = torch.full((4,), 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layers(x) * self.scale + self.hidden + self.constant + torch.tensor([0.0, 1.0, 2.0, 3.0])
        return y, y.reshape(x.shape[0] * 2, -1)


def test_tensors_keep_their_names() -> None:
    scripted = check(State(), *random(*SHAPES))
    names = {"layers.0.weight", "layers.0.bias", "scale", "hidden", "constant"}
    assert names <= set(scripted.state_dict())
    assert {name for name, _ in scripted.named_parameters()} == {"layers.0.weight", "layers.0.bias"}


SIZES: dict[str, Function] = {
    "floordiv and mod": lambda x: x.new_zeros(x.shape[0] // 2 + x.shape[0] % 3),
    "negative floordiv": lambda x: x.new_zeros(-(-x.shape[0] // 2)),
    "pow of ints is an int": lambda x: x.new_zeros(x.shape[0] ** 2),
    "pow gives a float": lambda x: x * (2 ** -x.shape[0]) * x.shape[0] ** 0.5,
    "max and min": lambda x: x.new_zeros(torch.sym_max(x.shape[0], 4), torch.sym_min(x.shape[0], 4)),
    "ceil": lambda x: x.new_zeros(math.ceil(x.shape[0] / 3)),
    "floor": lambda x: x.new_zeros(math.floor(x.shape[0] * 0.7)),
    "trunc": lambda x: x.new_zeros(math.trunc(x.shape[0] / 2)),
    "round": lambda x: x.new_zeros(round(x.shape[0] / 2)),
    "sqrt": lambda x: x * torch._sym_sqrt(x.shape[0]),
    "float": lambda x: x * torch.sym_float(x.shape[0]),
    "int": lambda x: x.new_zeros(torch.sym_int(x.shape[0] / 2)),
    "sum": lambda x: x.new_zeros(torch.sym_sum([x.shape[0], x.shape[0], 3])),
    "abs and neg": lambda x: x.new_zeros(abs(x.shape[0] - 20)) + -x.shape[0],
    "truediv in a scalar": lambda x: torch.full((x.shape[0],), x.shape[0] / 3),
    "int where a float is wanted": lambda x: torch.linspace(0, x.shape[0], 5),
    "numel, stride, slices": lambda x: (x.new_zeros(x.numel()), x.t().stride(0) * x, x[-(x.shape[0] // 2) :]),
    "not": lambda x: torch.cond(torch.sym_not(x.shape[0] > 4), lambda x: x + 1, lambda x: x - 1, (x,)),
    "interpolated": lambda x: functional.interpolate(x[None, None], scale_factor=1.5),
}


@pytest.mark.parametrize("name", SIZES)
def test_arithmetic_on_sizes(name: str) -> None:
    check(Calls(SIZES[name]), *random(*SHAPES))


def test_a_choice_between_sizes() -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0]
        return x.new_zeros(torch.sym_ite(size > 4, size, size + 10))

    check(Calls(either), *random(*SHAPES))


def scalars(x: torch.Tensor) -> list[torch.Tensor]:
    """Numbers as left and right operands, and True, which TorchScript would pass to an operator as 1."""
    size, y = x.shape[0], x > 0
    whole = x.to(torch.int64) + 2
    return [
        *(7 // x, 3.5 // whole, 7 % x, 2**whole, 1 << whole, 1 - x, 1 / x, size / x, 1.5 - whole),
        *(y ^ True, y + True, whole + True, y & True, y == True, torch.full((size,), True)),  # noqa: E712
        *(torch.where(y, True, False), torch.where(y, x, 0.0), torch.where(y, 1, 2.5), x.new_full((2,), True)),
        *(torch.maximum(x, torch.tensor(1.0)), x.clamp(max=0), x.pow(size), torch.float_power(x, 2)),
        *(x.masked_fill(y, -math.inf), x.masked_fill(y, math.nan), torch.full((2,), -(2**63)), x * 1e-45),
    ]


def types(x: torch.Tensor) -> list[torch.Tensor]:
    size = x.shape[0]
    return [
        *(x.half(), x.double(), x.to(torch.int32), x.to("cpu"), x.type_as(x.half()), x.bfloat16().float()),
        *(
            torch.arange(size),
            torch.arange(0, size, 2, dtype=torch.float32),
            torch.eye(size),
            torch.empty(size).fill_(2),
        ),
        *(torch.zeros_like(x, dtype=torch.int64), torch.tensor(True), torch.tensor(3.5), torch.zeros(())),
        *(x.view(torch.int32), x.contiguous(memory_format=torch.contiguous_format), torch.linspace(0, 1, 5)),
        (torch.ones(3, dtype=torch.complex64) * 2j).real,
    ]


def lists(x: torch.Tensor) -> list[Any]:
    """Lists, including empty ones and ones with None; Optional and overloaded arguments."""
    image = x[:, None, None, :].expand(-1, 2, 3, 4)
    return [
        *(x.sum(()), x.amax(()), x.sum(), x.sum(1), x.sum(-1, keepdim=True), x.mean((0, 1)), x.var(1, correction=0)),
        *(x[:, [0, 2]], x[torch.tensor([0, 1])], x[torch.tensor([0, 1]), torch.tensor([2, 3])], x[x[:, 0].argsort()]),
        functional.interpolate(image, scale_factor=2, mode="bilinear"),
        functional.interpolate(image, size=(5, 7), mode="bilinear", align_corners=True),
        functional.dropout(x, 0, False),
        functional.layer_norm(x, (4,), eps=1),
        functional.pad(x, (1, 2), value=3),
        torch.einsum("ij,kj->ik", x, x),
        functional.scaled_dot_product_attention(x, x, x, scale=1),
        torch.cat(x.split(2, 1), 0),
    ]


def several(x: torch.Tensor) -> list[Any]:
    return [
        *(*x.split(2, 1), *x.split([1, 3], 1), *x.chunk(2, -1), *x.unbind(1), *x.tensor_split(2, 1)),
        *(*x.topk(2, 1), *x.max(1), *x.sort(-1), *x.median(0), *torch.std_mean(x, 1), x.max(), torch.max(x, x * 2)),
        *torch.native_layer_norm(x, (4,), None, None, 1),
        *torch.meshgrid(x[:, 0], x[0], indexing="ij"),
    ]


def in_place(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.clone()
    y[:, 0] = 7
    y[1] += x[0]
    y[y > 3] = 0
    y[:, 1:3].mul_(2)
    y.unsqueeze_(0).clamp_(-1, 1)
    z = x.clone().index_put_((torch.tensor([0]),), torch.tensor(5.0))
    return [y, y.transpose(0, 1), z, x.clone().masked_fill_(x > 0, True), torch.zeros_like(x).copy_(x).relu_()]


def sizes_from_values(x: torch.Tensor) -> list[torch.Tensor]:
    count = (x > 0).sum().item()
    return [x[x > 0], torch.nonzero(x), x.masked_select(x > 0.5), torch.ones(count), x * x.sum().item(), x * count]


def indices(x: torch.Tensor) -> list[torch.Tensor]:
    index = torch.zeros(x.shape[0], 1, dtype=torch.int64)
    return [
        *(x.scatter(1, index, 2.0), x.scatter(1, index, x), x.scatter_add(1, index, x), x.gather(1, index + 1)),
        torch.zeros(3).scatter_reduce(0, torch.tensor([0, 1]), x[:2, 0], "amax"),
        functional.embedding(index, x),
        *(torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(x) * 1j)),
    ]


GROUPS = (scalars, types, lists, several, in_place, sizes_from_values, indices)


@pytest.mark.parametrize("function", GROUPS, ids=lambda function: function.__name__)
def test_operators(function: Function) -> None:
    check(Calls(function), *random(*SHAPES))


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights:UserWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers(kind: type[nn.Module]) -> None:
    layers = kind(4, 4, 2, batch_first=True, bidirectional=True)
    check(layers, *random((3, 7, 4), (1, 7, 4), (4, 7, 4)), rounding=1e-6)  # torch.export decomposes a GRU


def test_an_embedding_bag() -> None:
    check(nn.EmbeddingBag(9, 4), *(torch.randint(0, 9, (batch, 5)) for batch in (2, 1, 4)))


class Counter(nn.Module):
    """Changes its buffers, one in place and one by reassignment, also inside torch.no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.history = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            self.calls.add_(1)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.calls[0] += 1
        return x * self.calls + self.mean, self.mean, self.calls


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # torch 2.11 to itself
@pytest.mark.parametrize("functional_graph", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_changed_buffers_persist_as_in_eager(functional_graph: bool, frozen: bool) -> None:
    eager = Counter()
    program = exported(Counter(), torch.ones(3, 4))
    if functional_graph:
        program = program.run_decompositions({})
    scripted = bridge.from_exported(program)
    artifact = reloaded(torch.jit.freeze(scripted) if frozen else scripted)
    for x in random(*SHAPES, *SHAPES):
        assert_same(artifact(x), eager(x))
    assert artifact.calls.item() == 12
    scripted(torch.ones(3, 4))
    assert program.state_dict["calls"].item() == 0  # the program's own tensors do not change


def test_an_input_changed_in_place() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x, y = torch.ones(3, 4), torch.ones(3, 4)
    scripted = check(Calls(change), *random(*SHAPES))
    assert_same(scripted(x), change(y))
    assert torch.equal(x, y)


class Autocast(nn.Module):
    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.enabled = enabled

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
            y = self.linear(x)
        return y, self.linear(x)


@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_regions_keep_their_precision(enabled: bool) -> None:
    scripted = check(Autocast(enabled), *random(*SHAPES))
    assert scripted(torch.ones(2, 4))[0].dtype == (torch.bfloat16 if enabled else torch.float32)


class Branches(nn.Module):
    """Nested branches with their own parameters, buffers and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def positive(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.max() > 2, lambda x: self.linear(x) * x.shape[0], lambda x: x - self.scale, (x,))

        def negative(x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(x.shape[1])

        return torch.cond(x.sum() > 0, positive, negative, (x,)) + 1


def test_cond_becomes_if() -> None:
    scripted = check(Branches(), torch.ones(3, 4), 3 * torch.ones(2, 4), -torch.ones(5, 4))
    assert str(scripted.inlined_graph).count("prim::If") == 2


def test_cond_on_a_size() -> None:
    def by_size(x: torch.Tensor) -> torch.Tensor:
        return x * torch.cond(x.shape[0] > 4, lambda x: x.shape[0] + x.sum(), lambda x: x.sum(), (x,))

    check(Calls(by_size), *random(*SHAPES))


LOOPS: dict[str, Function] = {
    "while, counted": lambda x: while_loop(lambda i, y: i < x.shape[0], lambda i, y: (i + 1, y.sin() + i), (0, x)),
    "while, on a tensor, swapping": lambda x: while_loop(
        lambda a, b: (a + b).sum() < 50, lambda a, b: (b + 1, a + b.abs()), (x, x * 2)
    ),
    "scan": lambda x: scan(lambda carry, row: (carry + row, carry * x.shape[0]), x[0] * 0, x),
    "scan, reversed": lambda x: scan(lambda carry, row: (carry + row, carry * 2), x[0] * 0, x, reverse=True),
    "map": lambda x: torch_map(lambda row, scale: row * scale, x, x[0] + 1),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    check(Calls(LOOPS[name]), *random(*SHAPES))


def test_outputs_of_every_kind() -> None:
    def outputs(x: torch.Tensor) -> dict[str, Any]:
        return {"a": [x, None, (x + 1, x.shape[0] * 2)], "b": {"c": 3, "d": True, "e": 2.5}, "f": x}

    check(Calls(outputs), *random(*SHAPES))


def test_inputs_that_are_not_tensors_are_constants() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, by: int, bias: Any, mode: str) -> torch.Tensor:
            return x * by if mode == "mul" and bias is None else x

    program = torch.export.export(Scaled(), (torch.ones(3, 4), 3, None, "mul"))
    (got,) = bridge.from_exported(program)(torch.full((3, 4), 2.0))
    assert torch.equal(got, torch.full((3, 4), 6.0))


def test_a_size_among_the_inputs() -> None:
    class Repeated(nn.Module):
        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            return x.repeat(times, 1)

    free = torch.export.Dim.DYNAMIC
    program = torch.export.export(Repeated(), (torch.ones(3, 4), 3), dynamic_shapes=({0: free}, free))
    (got,) = bridge.from_exported(program)(torch.ones(2, 4), 5)
    assert got.shape == (10, 4)


def test_guards_and_assertions_are_left_to_the_contract() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] <= 16)
        torch._check(x.shape[0] * 2 >= 2)
        assert x.shape[1] == 4
        return x.reshape(-1, 2)

    scripted = check(Calls(checked), *random(*SHAPES, (40, 4))[:3])
    assert "assert" not in scripted.code


def test_the_device_follows_the_input() -> None:
    scripted = check(Calls(lambda x: torch.arange(x.shape[0]) + torch.zeros(1).to("cpu")), *random(*SHAPES))
    assert 'torch.device("cpu")' not in scripted.code
    elsewhere = Calls(lambda x: torch.zeros(1, device="meta"))
    assert 'torch.device("meta")' in bridge.from_exported(exported(elsewhere, torch.ones(3, 4))).code


def test_argument_names_that_shadow_modules() -> None:
    class Names(nn.Module):
        def forward(self, torch: torch.Tensor) -> torch.Tensor:
            return torch + torch.shape[0]

    check(Names(), *random(*SHAPES))


def test_experts_of_transformers() -> None:
    """They use an operator registered in Python, which an artifact could not call."""
    moe = pytest.importorskip("transformers.integrations.moe")

    def experts(x: torch.Tensor) -> torch.Tensor:
        weight = torch.arange(24.0).reshape(3, 4, 2)
        ends = torch.stack([torch.tensor(1), torch.tensor(1), torch.tensor(x.shape[0])])
        return torch.ops.transformers.grouped_mm_fallback(x, weight, ends)

    assert moe is not None
    scripted = check(Calls(experts), *random(*SHAPES))
    assert "transformers" not in scripted.code


@torch.library.custom_op("exporter_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Missing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = twice(x)
        z = twice(y) + twice(y)
        return z + torch.ops.prims.convert_element_type(x, torch.float64)


def test_all_missing_operators_are_named_with_their_lines() -> None:
    with pytest.raises(ExportError) as raised:
        bridge.from_exported(exported(Missing(), torch.ones(3, 4)))
    line = Missing.forward.__code__.co_firstlineno
    operators = ["exporter_tests.twice", "exporter_tests.twice", "prims.convert_element_type"]
    named = [f"{operator} ({__file__}:{line + i})" for i, operator in enumerate(operators, start=1)]
    assert str(raised.value) == f"TorchScript has no {', '.join(named)}"
    assert "torch.jit.script" in raised.value.remedy


def test_a_missing_higher_order_operator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(lowering.REGIONS, "cond")
    with pytest.raises(ExportError, match=r"TorchScript has no higher_order\.cond \(.*test_bridge\.py:\d+\)$"):
        bridge.from_exported(exported(Branches(), torch.ones(3, 4)))


class Cosine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y.cos()


def test_a_node_that_the_compiler_rejects_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lowering.RENAMED, "aten::cos", "aten::topk")
    place = re.escape(f"{__file__}:{Cosine.forward.__code__.co_firstlineno + 2}")
    rejected = rf"TorchScript cannot take aten\.cos\.default \({place}\): Arguments for call are not valid"
    with pytest.raises(ExportError, match=rejected):
        bridge.from_exported(exported(Cosine(), torch.ones(3, 4)))


def test_two_programs_of_the_same_structure() -> None:
    """TorchScript gives modules of the same class and structure one type, but each program must have its own."""
    first = bridge.from_exported(exported(Calls(lambda x: x + 1), torch.ones(3, 4)))
    second = bridge.from_exported(exported(Calls(lambda x: x - 1), torch.ones(3, 4)))
    assert float(first(torch.ones(2, 4))[0][0, 0]) == 2
    assert float(second(torch.ones(2, 4))[0][0, 0]) == 0
