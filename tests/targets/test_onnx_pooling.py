"""Adaptive pooling in ONNX models; `test_onnx_translations.py` tests averages with a divisor of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.translating import Outputs, translated
from torch.nn import functional

from exporter.core.errors import BothFailed
from exporter.core.size_range import Range

SIZES = {"height": Range(6, 40), "width": Range(6, 40)}


def images(x: torch.Tensor) -> Outputs:
    return tuple(
        pool(x, size)
        for pool in (functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d)
        for size in (1, 3, (3, 2), (5, 7))
    )


def volumes(x: torch.Tensor) -> Outputs:
    volume = torch.stack([x, x + 1, x * 2, x - 3, -x, x * x], 2)
    return (
        functional.adaptive_avg_pool3d(volume, (4, 2, 5)),
        functional.adaptive_avg_pool3d(volume, (None, 3, 1)),
        functional.adaptive_max_pool3d(volume, (4, 2, 5)),
        functional.adaptive_max_pool3d(volume[0], 3),
    )


def rows(x: torch.Tensor) -> Outputs:
    row = x[:, 0]
    return functional.adaptive_avg_pool1d(row, 4), functional.adaptive_max_pool1d(row, 4)


def to_sizes_that_depend_on_the_input(x: torch.Tensor) -> Outputs:
    height, width = x.shape[2:]
    return (
        functional.adaptive_avg_pool2d(x, (None, 3)),
        functional.adaptive_avg_pool2d(x, (height - 1, 2)),
        functional.interpolate(x, size=(height // 2, width * 2), mode="area"),
        functional.interpolate(x, scale_factor=0.5, mode="area"),
    )


@pytest.mark.parametrize("function", [images, volumes, rows, to_sizes_that_depend_on_the_input])
@pytest.mark.parametrize("sizes", [{}, SIZES], ids=["fixed", "dynamic"])
def test_windows_are_torchs(function: Callable[[torch.Tensor], Outputs], sizes: dict[str, Any], tmp_path: Path) -> None:
    module, run = translated(function, torch.randn(2, 3, 9, 12), sizes, tmp_path)
    for height, width in ((9, 12), (6, 40), (17, 7), (33, 31)) if sizes else ((9, 12),):
        x = torch.randn(2, 3, height, width)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_infinity_stays_in_its_windows(tmp_path: Path) -> None:
    module, run = translated(to_sizes_that_depend_on_the_input, torch.randn(2, 3, 9, 12), SIZES, tmp_path)
    x = torch.randn(2, 3, 13, 10)
    x[0, 0, 3, 4] = torch.inf
    for got, wanted in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def with_indices(x: torch.Tensor) -> Outputs:
    return functional.adaptive_max_pool2d(x, 3, return_indices=True)


def test_indices_of_equal_windows_are_torchs(tmp_path: Path) -> None:
    module, run = translated(with_indices, torch.randn(2, 3, 9, 12), {}, tmp_path)
    x = torch.randn(2, 3, 9, 12)
    assert all(map(torch.equal, run(x), module(x)))


def test_indices_of_other_windows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BothFailed, match="the indices of adaptive max pooling"):
        translated(with_indices, torch.randn(2, 3, 9, 12), SIZES, tmp_path)
