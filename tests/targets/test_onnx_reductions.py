"""Reductions in ONNX models."""

from __future__ import annotations

from pathlib import Path

import torch
from support.translating import Outputs, translated

from exporter.core.size_range import Range


def reduced(x: torch.Tensor) -> Outputs:
    half, small = x.half(), (x * 9).clamp(0, 255).to(torch.uint8)
    return (
        half.mean(1, dtype=torch.float32),
        (x > 0).mean(1, dtype=torch.float32),
        small.mean((0, 1), dtype=torch.float64),
        (x * 9).long().mean(0, keepdim=True, dtype=torch.float32),
        x.mean(1),
        x.mean((0, 1), keepdim=True),
        *(x.amax(), x.amin(), x.amax(keepdim=True), x.amin(1), x.amax((0, 1)), (x * 9).int().amin()),
        *x.aminmax(),
    )


def test_values_and_dtypes_are_torchs(tmp_path: Path) -> None:
    sizes = {"rows": Range(2, 8), "columns": Range(2, 4000)}
    module, run = translated(reduced, torch.randn(3, 5), sizes, tmp_path)
    for x in (torch.randn(8, 4000) + 30, torch.randn(2, 3), torch.randn(3, 7) * 1e4):
        for got, wanted in zip(run(x), module(x), strict=True):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
