"""Gated linear units in packages, over a dimension with a dynamic size."""

from __future__ import annotations

from pathlib import Path

import torch
from support import packages
from torch.nn import functional

from exporter.targets import _gated_units


class Gated(torch.nn.Module):
    """A gated unit over a dynamic dimension, and one over a static dimension."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return functional.glu(torch.cat([x, y], -1)), functional.glu(x, 1)


def test_units_keep_the_sizes(tmp_path: Path) -> None:
    columns = torch.export.Dim("columns", min=2, max=24)
    x, y = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    program = torch.export.export(Gated(), (x, y), dynamic_shapes=({2: columns}, {2: columns}))
    with _gated_units.at_all_sizes():
        package = packages.build(program, tmp_path / "gated.pt2")
    runner = torch._inductor.aoti_load_package(str(package))
    for size in (5, 2, 9, 24):
        given = torch.randn(3, 4, size), torch.randn(3, 4, size)
        for got, wanted in zip(runner(*given), Gated()(*given), strict=True):
            torch.testing.assert_close(got, wanted)
