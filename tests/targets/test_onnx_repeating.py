"""Elements that are repeated as often as a size of the input says, in ONNX models."""

from __future__ import annotations

from pathlib import Path

import torch
from support.translating import Outputs, translated

from exporter.core.size_range import Range


def repeated(x: torch.Tensor) -> Outputs:
    batch, length, width = x.shape
    return (
        x.repeat_interleave(length, 0),
        x.repeat_interleave(width, 1),
        x.repeat_interleave(length, -1),
        x.repeat_interleave(length * 2 - 1, -2),
        torch.repeat_interleave(x, width, output_size=batch * length * width * width),
        torch.repeat_interleave((x * 9).long(), length, dim=2),
        (x > 0).repeat_interleave(width, dim=1),
        x[0, 0, 0].repeat_interleave(length),
        x[:, 0].repeat_interleave(3, -1),
        x.repeat_interleave(2),
    )


def test_values_are_torchs(tmp_path: Path) -> None:
    module, run = translated(repeated, torch.randn(2, 4, 5), {"length": Range(1, 16), "width": Range(1, 16)}, tmp_path)
    for shape in ((2, 4, 5), (2, 2, 3), (2, 1, 7), (2, 9, 1), (2, 1, 1), (2, 2, 2)):
        x = torch.randn(shape)
        for got, wanted in zip(run(x), module(x), strict=True):
            assert torch.equal(got, wanted)
