"""Models written for float32 in a half precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, mixed_dtypes, precision

X = torch.linspace(-1, 1, 24).reshape(4, 6)
CONTRACT = Contract(
    "small",
    (TensorSpec("x", "float32", ("batch", 6)),),
    (TensorSpec("output0", "float32", ("batch", 6)),),
    {"batch": Range(2, 8)},
)


class Layers(torch.nn.Module):
    """A linear layer, and a function of its output (batch, 6) and of float32 tensors."""

    def __init__(self, function: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.gru = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.GRU(6, 6)
        self.square = torch.nn.Parameter(torch.eye(6) + 0.1)
        self.convolution = torch.nn.Conv1d(1, 1, 3, padding=1)
        self.function = function

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.function(self.first(x), self),)


def assigned(x: torch.Tensor, layers: Any) -> torch.Tensor:
    made = torch.zeros_like(x)
    made[x > 0] = x[x > 0].float()
    return made


FLOAT = torch.linspace(0, 1, 6)  # the dtype of tensors that a model creates
FUNCTIONS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "a layer": lambda x, layers: layers.first(x + FLOAT),
    "a product": lambda x, layers: x @ torch.diag(FLOAT),
    "a product with the tensor on the right": lambda x, layers: torch.eye(len(x)).matmul(x),
    "einsum": lambda x, layers: torch.einsum("bi,ij->bj", x, torch.diag(FLOAT)),
    "a sum with a product": lambda x, layers: torch.addmm(FLOAT, x, torch.diag(FLOAT)),
    "a convolution": lambda x, layers: layers.convolution((x + FLOAT)[:, None])[:, 0],
    "attention": lambda x, layers: functional.scaled_dot_product_attention(x[None] + FLOAT, x[None], x[None])[0],
    "a norm": lambda x, layers: layers.norm(x.float()),
    "a recurrent layer": lambda x, layers: layers.gru(x.float()[:, None])[0][:, 0],
    "interpolation": lambda x, layers: torch.lerp(x, FLOAT.expand_as(x), 0.3),
    "an inverse": lambda x, layers: x @ torch.inverse(layers.square),
    "torch.linalg": lambda x, layers: x @ torch.linalg.inv(layers.square),
    "torch.fft": lambda x, layers: torch.fft.irfft(torch.fft.rfft(x), n=6),
    "scatter": lambda x, layers: x.scatter(1, torch.zeros(len(x), 1, dtype=torch.long), torch.ones(len(x), 1)),
    "adding at an index": lambda x, layers: x.index_add(1, torch.tensor([0, 2]), torch.ones(len(x), 2)),
    "adding in place": lambda x, layers: torch.zeros_like(x).index_add_(0, torch.arange(len(x)), x.float()),
    "assigning by a mask": assigned,
    "a mask": lambda x, layers: x.masked_fill(x > 0, -1e9).softmax(-1),
    "a mask by name": lambda x, layers: x.masked_fill(x > 0, value=float(torch.finfo(torch.float32).min)).softmax(-1),
    "a full tensor": lambda x, layers: torch.where(x > 0, torch.full_like(x, -1e9), x).softmax(-1),
    "filled": lambda x, layers: torch.where(x > 0, torch.full((6,), -1e9, dtype=x.dtype), x).softmax(-1),
    "a distance": lambda x, layers: x + torch.cdist(x, x).sum(),
    "a state by name": lambda x, layers: layers.gru(x[:, None], hx=torch.zeros(1, 1, 6))[0][:, 0],
}
OF_NUMBERS = ("a mask", "a full tensor", "filled")  # bfloat16 has these numbers


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of len
@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # of a recurrent layer
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_a_call_that_eager_rejects_agrees(name: str, half: str) -> None:
    model = Layers(FUNCTIONS[name]).eval()
    with torch.no_grad():
        expected = model(X)[0]
        made = precision.cast(copy.deepcopy(model), half, ("float32",))
        if half == "fp16" or name not in OF_NUMBERS:
            with pytest.raises((RuntimeError, ValueError), match=r"type|Half|BFloat16"):
                made(X)
        with mixed_dtypes.agreeing(made, (X,)):
            found = made(X)[0]
            traced = torch.jit.trace(made, (X,), check_trace=False)(X)[0]
        program = capture.export_program(made, (X,), CONTRACT).module()
        captured = program(X)[0]
    for one in (found, traced, captured):
        torch.testing.assert_close(one, expected, rtol=0.05, atol=0.05)


class Accepted(torch.nn.Module):
    """What eager accepts although dtypes differ, and one call that it rejects."""

    def forward(self, x: torch.Tensor, reject: bool = True) -> tuple[torch.Tensor, ...]:
        wide = torch.arange(1000.0, 1000.0 + x.shape[1])
        mask = torch.full((x.shape[0], x.shape[0]), -1e9).triu(1)
        found = (
            torch.einsum("i,j->ij", wide, x[0]),
            functional.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=mask)[0],
            functional.layer_norm(x, (x.shape[1],), torch.ones(x.shape[1]), torch.zeros(x.shape[1])),
            torch.lerp(x, x + 1, torch.tensor(0.3)),
            torch.linalg.norm(x),
            torch.index_add(input=x, dim=0, index=torch.tensor([1]), source=x[:1]),
        )
        return (*found, x @ torch.diag(wide)) if reject else found


def test_calls_that_eager_accepts_stay() -> None:
    made = precision.cast(Accepted(), "bf16", ("float32",) * 7)
    half = X.bfloat16()
    expected = Accepted()(half, reject=False)
    with mixed_dtypes.agreeing(made, (X,)):
        found = Accepted()(half)
    for one, other in zip(found[:-1], expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found[-1].dtype == torch.bfloat16


class Writes(torch.nn.Module):
    """Calls that eager rejects, and whose result would go to a copy if their operands were cast."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        made = torch.zeros_like(x)
        if self.kind == "statistics":
            return (functional.batch_norm(x.float(), self.mean, self.variance, training=True),)
        if self.kind == "view":
            torch.view_as_complex(made.view(-1, 2)).add_(1.0)
        else:
            torch.matmul(x, torch.eye(6), out=made)
        return (made,)


@pytest.mark.parametrize("kind", ["statistics", "view", "out"])
def test_calls_that_write_are_rejected_as_in_eager(kind: str) -> None:
    made = precision.cast(Writes(kind), "bf16", ("float32",))
    with mixed_dtypes.agreeing(made, (X,)), torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
        made(X)


def test_a_model_that_eager_runs_is_left_alone() -> None:
    usual = functional.linear
    runs = Layers(lambda x, layers: layers.first(x))
    for module in (Layers(FUNCTIONS["a layer"]), precision.cast(runs, "bf16", ("float32",))):
        with mixed_dtypes.agreeing(module, (X,)):
            assert functional.linear is usual


class Counting(Layers):
    """Counts its calls in a buffer."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__(FUNCTIONS["a layer"])
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.calls.add_(1)
        return super().forward(x)


def test_trying_eager_leaves_the_state() -> None:
    module = Counting()
    with mixed_dtypes.agreeing(precision.cast(module, "bf16", ("float32",)), (X,)):
        assert module.calls == 0


def test_the_functions_are_put_back() -> None:
    usual = {name: getattr(torch.Tensor, name) for name in ("matmul", "__matmul__", "masked_fill_")}
    made = precision.cast(Layers(FUNCTIONS["a layer"]), "bf16", ("float32",))
    with mixed_dtypes.agreeing(made, (X,)):
        assert torch.Tensor.matmul is not usual["matmul"]
    assert {name: getattr(torch.Tensor, name) for name in usual} == usual
    assert "matmul" not in vars(torch.Tensor)


def test_every_name_belongs_to_a_function() -> None:
    names = {name.removesuffix("_") for _, name, _ in mixed_dtypes._changes() if not name.startswith("__")}
    owners = (torch, functional, torch.Tensor, torch.linalg, torch.fft)
    assert {name for name in names if not any(hasattr(owner, name) for owner in owners)} == set()
