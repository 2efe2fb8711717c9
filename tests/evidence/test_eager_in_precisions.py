"""Eager's outputs in other precisions; tests/targets/test_precision.py and test_kept_layers.py have further ones."""

from __future__ import annotations

import torch

from exporter.core import tolerances
from exporter.core.size_range import Range
from exporter.evidence import eager_in_precisions, make_golden
from exporter.evidence.golden import Precision
from exporter.model.tensors import Tensors

X = torch.linspace(-1, 1, 64).reshape(4, 16)


def in_bf16(module: torch.nn.Module) -> tuple[Tensors, Precision, tuple[str, ...]]:
    """Return the outputs in float32, what a golden has in bfloat16, and its notes."""
    plan = make_golden.Plan([({"batch": 4}, 0)], {"batch": Range(2, 8)})
    made, _ = make_golden.make(module, lambda sizes, seed: (X,), plan, tolerances.FLOAT32, "cpu")
    asked = {"bf16": tolerances.BY_PRECISION["bf16"]}
    others, notes = eager_in_precisions.in_precisions(made, module, asked, ("float32",), "cpu")
    return made.cases[0].eager, others["bf16"], notes


class Stubborn(torch.nn.Module):
    """Accepts no other precision."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Tensors:
        if x.dtype != torch.float32:
            raise TypeError("expected float32")
        return (self.linear(x),)


def test_a_model_that_does_not_run_in_a_precision_is_compared_with_float32() -> None:
    module = Stubborn()
    _, half, notes = in_bf16(module)
    (note,) = notes
    assert note.startswith("eager does not run in bf16: TypeError: expected float32 (")
    assert note.endswith(".py:34)")
    assert half.eager == ()
    assert module.linear.weight.dtype == torch.float32


class Mixed(Stubborn):
    """Creates a float32 tensor, which eager does not multiply by one in half precision."""

    def forward(self, x: torch.Tensor) -> Tensors:
        return (self.linear(x) @ torch.ones(4, 4, dtype=torch.float32),)


def test_operands_of_different_dtypes_are_cast() -> None:
    usual, half, (note,) = in_bf16(Mixed())
    assert note.startswith("eager does not run in bf16: RuntimeError: ")
    assert note.endswith(f"; {eager_in_precisions.CAST}")
    assert torch.allclose(half.eager[0][0], usual[0], atol=0.05)
    assert not torch.equal(half.eager[0][0], usual[0])
