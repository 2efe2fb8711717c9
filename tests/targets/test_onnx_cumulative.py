"""What is computed of all elements up to each, in ONNX models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.translating import Outputs, translated

from exporter.core.errors import BothFailed
from exporter.core.size_range import Range


def running(x: torch.Tensor) -> Outputs:
    """The first exponentials are tiny beside the last; some elements are equal."""
    rising = x + torch.arange(x.shape[1]) * 200
    return rising.logcumsumexp(-1), x.logcumsumexp(0), *(x * 2).round().cummax(-1), *x.cummin(0)


def test_values_and_places_are_torchs(tmp_path: Path) -> None:
    module, run = translated(running, torch.randn(3, 5), {"rows": Range(2, 8), "columns": Range(2, 16)}, tmp_path)
    for sizes in ((3, 5), (2, 16), (8, 3)):
        x = torch.randn(sizes)
        for got, wanted in zip(run(x), module(x), strict=True):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


def test_infinity_and_nan_are_torchs(tmp_path: Path) -> None:
    module, run = translated(
        lambda x: (*x.cummax(1), *x.cummin(1)), torch.randn(3, 4), {"columns": Range(2, 9)}, tmp_path
    )
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[-inf, -inf, 1.0, 2.0], [inf, inf, 1.0, -inf], [1.0, nan, 3.0, nan]])
    for got, wanted in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_extremes_of_integers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BothFailed, match="for floating-point numbers with dimensions only"):
        translated(lambda x: tuple((x * 9).long().cummax(-1)), torch.randn(3, 5), {}, tmp_path)
