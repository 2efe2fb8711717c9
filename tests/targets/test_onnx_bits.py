"""Booleans and integers in ONNX models: what onnxruntime has no kernel for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.translating import Outputs, translated

from exporter.core.size_range import Range

INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
COUNTS = (0, 1, 7, 8, 15, 31, 32, 63, 64, -1)  # eager returns 0, or -1 of negative numbers, if a count is no bit's


def integers(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the same numbers in each integer dtype, those that do not fit wrapped."""
    return [(x * 100).long().to(dtype) for dtype in INTEGERS]


def chosen(x: torch.Tensor) -> Outputs:
    high, low, row = x > 0.5, x < -0.5, x[0] > 0
    return (
        torch.where(high, low, row),
        torch.where(row, high, low),
        torch.where(high[:1], row, low),
        torch.where(high, True, row),
        torch.where(high, False, row),
        torch.where(high, row, True),
        torch.where(row, low, False),
        torch.where(high, True, torch.where(low, False, row)),
        torch.where(high, True, False),
        torch.where(high, False, True),
        torch.where(high, True, True),
        torch.where(high, high, x),
        torch.where(high, (x * 9).short(), row),
        torch.where(high, (x * 9).short(), 5),
        torch.where(high, 5, 7),
    )


def filled(x: torch.Tensor) -> Outputs:
    high, row = x > 0.5, x[0] > 0
    return (
        high.masked_fill(row, True),
        high.masked_fill(row, False),
        high.masked_fill(high[0], row.any()),
        (x * 9).short().masked_fill(high, -3),
        x.masked_fill(high, -3),
    )


def shifted_by_numbers(x: torch.Tensor) -> Outputs:
    return tuple(one << count for one in integers(x) for count in COUNTS) + tuple(
        one >> count for one in integers(x) for count in COUNTS
    )


def shifted_by_tensors(x: torch.Tensor) -> Outputs:
    counts = (x * 20).long()
    small = torch.arange(x.shape[1], dtype=torch.int32)
    whole = integers(x)
    return (
        *(one << counts.to(one.dtype) for one in whole),
        *(one >> counts.to(one.dtype) for one in whole),
        *(one[:, :, None] >> small for one in whole),
        *(one << small for one in whole),
        *(torch.bitwise_left_shift(one, small[0] + 3) for one in whole),
        *(torch.bitwise_right_shift(one, counts) for one in whole),
        *(torch.bitwise_left_shift(3, one) for one in whole),
        *(torch.bitwise_right_shift(-200, one) for one in whole),
        *(one.bitwise_right_shift(2) for one in whole),
    )


def shifted_in_place(x: torch.Tensor) -> Outputs:
    code = (x * 100).int()
    code <<= 3
    code >>= 1
    return (code,)


def negated(x: torch.Tensor) -> Outputs:
    return (*(-one for one in integers(x)), -x)


@pytest.mark.parametrize(
    "function", [chosen, filled, shifted_by_numbers, shifted_by_tensors, shifted_in_place, negated]
)
def test_values_and_dtypes_are_torchs(function: Callable[[torch.Tensor], Outputs], tmp_path: Path) -> None:
    module, run = translated(function, torch.randn(3, 5), {"rows": Range(2, 8), "columns": Range(2, 16)}, tmp_path)
    extremes = torch.tensor([[0.0, -0.01, 0.01, 1.27, -1.28, 3.2e2, -3.3e2, 2.2e7, -2.2e7, 9e15, -9e15]] * 2)
    for x in (torch.randn(3, 5), torch.randn(2, 16) * 3, torch.randn(8, 3), extremes):
        for got, wanted in zip(run(x), module(x), strict=True):
            assert got.dtype == wanted.dtype
            assert torch.equal(got, wanted)
