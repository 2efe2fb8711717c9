"""Interpolation by factors that float32 does not hold, in ONNX models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.translating import Outputs, translated
from torch.nn import functional

from exporter.core.size_range import Range

SIZES = {"height": Range(10, 400)}
SINGLE = float(torch.tensor(0.7))  # exact in float32, but its products are not


@pytest.mark.parametrize(
    ("dims", "options"),
    [
        (2, {"scale_factor": (0.7, 1.3), "mode": "bilinear"}),
        (2, {"scale_factor": (0.7, 1.3), "mode": "bilinear", "antialias": True}),
        (2, {"scale_factor": (1.3, 0.7), "mode": "bilinear", "align_corners": True}),
        (2, {"scale_factor": (0.7, 2.0), "mode": "bicubic"}),
        (2, {"scale_factor": (1.3, 0.7), "mode": "nearest"}),
        (2, {"scale_factor": (1.05, 1.0), "mode": "nearest"}),
        (2, {"scale_factor": (2.03, 1.0), "mode": "nearest"}),
        (2, {"scale_factor": (SINGLE, 2), "mode": "bilinear"}),
        (2, {"scale_factor": (SINGLE, 2), "mode": "nearest"}),
        (2, {"scale_factor": 0.7, "mode": "bilinear", "recompute_scale_factor": True}),
        (1, {"scale_factor": 1.05, "mode": "nearest"}),
        (1, {"scale_factor": 0.7, "mode": "linear"}),
        (3, {"scale_factor": (0.7, 1.1, 2.0), "mode": "trilinear"}),
        (3, {"scale_factor": (0.7, 1.7, 2.0), "mode": "nearest"}),
    ],
)
def test_sizes_and_values_are_torchs(dims: int, options: dict[str, Any], tmp_path: Path) -> None:
    def resized(x: torch.Tensor) -> Outputs:
        image = x.reshape(1, 2, -1, *(10, 6)[: dims - 1])
        return (functional.interpolate(image, **options),)

    rest = (10, 6)[: dims - 1]
    module, run = translated(resized, torch.randn(*rest, 2, 12), SIZES, tmp_path)
    for height in (*range(10, 24), 90, 170, 180, 190, 201, 330, 399):
        x = torch.randn(*rest, 2, height)
        (got,), (wanted,) = run(x), module(x)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=5e-4)


@pytest.mark.parametrize("factor", [1.25, 1.5, 2.125, 2.25, 2.5, 0.75, 3.25])
def test_few_rows_that_stay_or_double(factor: float, tmp_path: Path) -> None:
    """torch then copies or doubles them, whatever the factor is."""

    def resized(x: torch.Tensor) -> Outputs:
        return (functional.interpolate(x.reshape(1, 2, -1, 6), scale_factor=(factor, 2.0), mode="nearest"),)

    module, run = translated(resized, torch.randn(6, 2, 12), {"height": Range(2, 400)}, tmp_path)
    for height in range(2, 24):
        x = torch.randn(6, 2, height)
        (got,), (wanted,) = run(x), module(x)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
