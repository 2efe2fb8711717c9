"""Adaptive pooling in packages with dynamic sizes is right at every size, and static sizes keep inductor's code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import packages

from exporter.targets import _adaptive_pools

KERNELS = ("aoti_torch_cpu__adaptive_avg_pool2d(", "aoti_torch_cpu_adaptive_max_pool2d(")


class Pools(torch.nn.Module):
    """Adaptive pooling by the mean and by the maximum, with its indices."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        largest, indices = torch.nn.functional.adaptive_max_pool2d(x, (3, 2), return_indices=True)
        return torch.nn.functional.adaptive_avg_pool2d(x, (2, 5)), largest, indices


@pytest.mark.parametrize("dynamic", [(2, 3), (2,), (3,), ()])
def test_every_size_is_right(dynamic: tuple[int, ...], tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 10)
    shapes = {"x": {axis: torch.export.Dim(f"size{axis}", min=4, max=40) for axis in dynamic}}
    program = torch.export.export(Pools(), (x,), dynamic_shapes=shapes)
    with _adaptive_pools.at_all_sizes():
        package = packages.build(program, tmp_path / "pools.pt2")
    assert all((kernel in packages.sources(package)) == bool(dynamic) for kernel in KERNELS)
    runner = torch._inductor.aoti_load_package(str(package))
    for height, width in ((8, 10), (9, 11), (4, 40), (37, 5)):
        sizes = (height if 2 in dynamic else 8, width if 3 in dynamic else 10)
        other = torch.randn(2, 3, *sizes)
        for got, wanted in zip(runner(other), Pools()(other), strict=True):
            torch.testing.assert_close(got, wanted)
