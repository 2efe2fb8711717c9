"""Bounds of input sizes that follow from several other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, program_sizes
from exporter.model.flattening import FlatModule, flatten_inputs


class Sum(torch.nn.Module):
    def __init__(self, least: int = 0) -> None:
        super().__init__()
        self.least = least

    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        torch._check(mask.shape[1] >= self.least)
        return torch.cat([past, x], 1) + mask


class Part(Sum):
    """Takes the part of a mask that it needs, so that torch.export gives the mask a size of its own."""

    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        torch._check(mask.shape[1] >= self.least)
        whole = torch.cat([past, x], 1)
        return whole + mask[:, : whole.shape[1]]


class Difference(torch.nn.Module):
    def forward(self, x: torch.Tensor, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[:, past.shape[1] :] + mask


def captured(
    model: torch.nn.Module, x: Range, past: Range, sizes: tuple[int, int, int], mask: str | None = None
) -> Any:
    """Return a program whose inputs have two named sizes and a third, `mask`, which depends on both."""
    example = tuple(torch.ones(2, size) for size in sizes)
    named = (("x", "x"), ("past", "past"), ("mask", mask))
    specs = tuple(TensorSpec(name, "float32", (2, dim)) for name, dim in named)
    flat = FlatModule(model, flatten_inputs(model, example)).eval()
    return capture.export_program(flat, example, Contract("m", specs, (), {"x": x, "past": past})).module()


@pytest.mark.parametrize("model", [Sum(), Part()])
@pytest.mark.parametrize("x", [Range(1, 16), Range(3, 16)])
@pytest.mark.parametrize("mask", [None, "past+x"])
def test_a_sum_is_bounded_by_the_sums_of_the_bounds(model: torch.nn.Module, x: Range, mask: str | None) -> None:
    run = captured(model, x, Range(1, 64), (3, 5, 8), mask)
    for one, other in ((x.min, 1), (x.min, 2), (x.max, 64)):
        (y,) = run(torch.ones(2, one), torch.ones(2, other), torch.ones(2, one + other))
        assert y.shape == (2, one + other)
    with pytest.raises(AssertionError, match="Guard failed"):
        run(torch.ones(2, x.max + 1), torch.ones(2, 64), torch.ones(2, x.max + 65))


def test_a_difference_is_bounded_by_the_differences_of_the_bounds() -> None:
    run = captured(Difference(), Range(8, 64), Range(1, 7), (9, 4, 5))
    for one, other in ((64, 1), (8, 6)):
        assert run(torch.ones(2, one), torch.ones(2, other), torch.ones(2, one - other))[0].shape == (2, one - other)


@pytest.mark.parametrize("model", [Sum(6), Part(6)])
def test_a_condition_of_the_model_stays(model: torch.nn.Module) -> None:
    run = captured(model, Range(1, 16), Range(1, 64), (3, 5, 8))
    assert run(torch.ones(2, 1), torch.ones(2, 5), torch.ones(2, 6))[0].shape == (2, 6)
    with pytest.raises(AssertionError, match=r"Guard failed.* >= 6"):
        run(torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 2))


def test_bounds_that_torch_cannot_compute_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise program_sizes.ValueRangeError("Invalid ranges [0:-1]")

    monkeypatch.setattr(program_sizes, "bound_sympy", fail)
    run = captured(Sum(), Range(1, 16), Range(1, 64), (3, 5, 8))
    assert run(torch.ones(2, 3), torch.ones(2, 5), torch.ones(2, 8))[0].shape == (2, 8)
