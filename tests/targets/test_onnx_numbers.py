"""Numbers computed from sizes in ONNX models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.translating import Function, Outputs, translated

from exporter.core.size_range import Range


def counted(x: torch.Tensor) -> Outputs:
    n = x.shape[0]
    whole = (
        *(math.ceil(n * 0.1), math.floor(n * 0.7), int(n / 0.7), int(n * 1.1), round(n * 0.15), int(n**0.5)),
        *(int(n * n / 3 * 0.1), math.floor(n * 0.3 - 2), int(-(-n + 0.5) / 0.7), int((n + 0.1) / 0.7)),
    )
    return (x.sum() * (n * 0.3), torch.full((2,), n / 7) + x[0], *(x.new_ones(count) for count in whole))


def steps(x: torch.Tensor) -> Outputs:
    n = x.shape[0]
    return (torch.arange(0.0, 1.0, 1 / n), torch.arange(n * 0.7), torch.arange(1, n * 0.3, dtype=x.dtype), x[:n])


@pytest.mark.parametrize("function", [counted, steps])
def test_numbers_are_as_exact_as_pythons(function: Function, tmp_path: Path) -> None:
    module, run = translated(function, torch.ones(12), {"length": Range(8, 700)}, tmp_path)
    for length in range(8, 701):
        x = torch.ones(length)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted)


def test_a_number_of_tensors_stays_single(tmp_path: Path) -> None:
    """The graph's operators take float32, so that the result has the dtype that eager's has."""
    module, run = translated(lambda x: (x * (x.shape[0] / 3),), torch.ones(12), {"length": Range(8, 700)}, tmp_path)
    (got,), (wanted,) = run(torch.ones(9)), module(torch.ones(9))
    assert (got.dtype, wanted.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(got, wanted)
