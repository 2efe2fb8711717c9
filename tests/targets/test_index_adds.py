"""Packages that add at indices in bfloat16."""

from __future__ import annotations

from pathlib import Path

import torch
from support import packages

from exporter.targets import _index_adds


class Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        start = torch.ones_like(x)
        return start.index_add(0, index, x), start.index_add(0, index, x, alpha=2), start.t().index_add(1, index, x.t())


def test_index_add_in_bfloat16(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    x, index = torch.randn(6, 3).bfloat16(), torch.tensor([0, 2, 2, 1, 0, 4])
    program = torch.export.export(Adds(), (x, index), dynamic_shapes=({0: rows}, {0: rows}))
    with _index_adds.decomposed():
        package = packages.build(program, tmp_path / "adds.pt2")
    runner = torch._inductor.aoti_load_package(str(package))
    other, places = torch.randn(9, 3).bfloat16(), torch.tensor([8, 8, 0, 1, 8, 2, 2, 5, 0])
    for got, wanted in zip(runner(other, places), Adds()(other, places), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.05)  # the order of additions differs
