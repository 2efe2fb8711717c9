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
}
OF_NUMBERS = ("a mask", "a mask by name", "a full tensor")  # bfloat16 has these numbers


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
        with mixed_dtypes.agreeing(made):
            found = made(X)[0]
        program = capture.export_program(made, (X,), CONTRACT).module()
        captured = program(X)[0]
    assert found.dtype == torch.float32
    for one in (found, captured):
        torch.testing.assert_close(one, expected, rtol=0.05, atol=0.05)


def test_what_eager_accepts_stays() -> None:
    model = precision.cast(Layers(lambda x, layers: torch.linalg.norm(layers.first(x) + FLOAT)), "bf16", ("float32",))
    with torch.no_grad():
        expected = model(X)[0]
        with mixed_dtypes.agreeing(model):
            assert torch.equal(model(X)[0], expected)


def test_a_float32_model_is_left_alone() -> None:
    usual = functional.linear
    with mixed_dtypes.agreeing(Layers(FUNCTIONS["a layer"])):
        assert functional.linear is usual


def test_the_functions_are_put_back() -> None:
    usual = {name: getattr(torch.Tensor, name) for name in ("matmul", "__matmul__", "masked_fill_")}
    made = precision.cast(Layers(FUNCTIONS["a layer"]), "bf16", ("float32",))
    with mixed_dtypes.agreeing(made):
        assert torch.Tensor.matmul is not usual["matmul"]
    assert {name: getattr(torch.Tensor, name) for name in usual} == usual
    assert "matmul" not in vars(torch.Tensor)
