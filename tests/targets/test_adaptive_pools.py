"""Adaptive pooling in packages with dynamic sizes is right at every size, and static sizes keep inductor's code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import packages
from torch.nn import functional

from exporter.targets import _adaptive_pools

KERNELS = ("aoti_torch_cpu__adaptive_avg_pool2d(", "aoti_torch_cpu_adaptive_max_pool2d(")


class Pools(torch.nn.Module):
    """Adaptive pooling by the mean and by the maximum, to sizes that divide the example's and to others."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [functional.adaptive_avg_pool2d(x, size) for size in ((2, 4), (3, 2), (1, 1))]
        for size in ((2, 4), (3, 2), (1, 1)):
            found += functional.adaptive_max_pool2d(x, size, return_indices=True)
        deep = x.reshape(2, 1, 3, *x.shape[2:])
        return (
            *found,
            functional.adaptive_max_pool3d(deep, (1, 3, 2)),
            functional.adaptive_avg_pool3d(deep, (1, 3, 2)),
        )


class Like(torch.nn.Module):
    """Pooling of a static image to a dynamic size."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        image = torch.arange(2.0 * 3 * 32 * 32).reshape(2, 3, 32, 32)
        return (functional.adaptive_avg_pool2d(image, x.shape[2:]) + x,)


@pytest.mark.parametrize(
    ("model", "dynamic"),
    [(Pools(), (2, 3)), (Pools(), (2,)), (Pools(), (3,)), (Pools(), ()), (Like(), (2, 3))],
    ids=["both", "height", "width", "static", "target"],
)
def test_every_size_is_right(model: torch.nn.Module, dynamic: tuple[int, ...], tmp_path: Path) -> None:
    x = torch.randn(2, 3, 9, 10)
    shapes = {"x": {axis: torch.export.Dim(f"size{axis}", min=4, max=40) for axis in dynamic}}
    program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    with _adaptive_pools.at_all_sizes():
        package = packages.build(program, tmp_path / "pools.pt2")
    if isinstance(model, Pools):
        assert all((kernel in packages.sources(package)) == bool(dynamic) for kernel in KERNELS)
    runner = torch._inductor.aoti_load_package(str(package))
    for height, width in ((9, 10), (12, 11), (4, 40), (37, 5)):
        sizes = (height if 2 in dynamic else 9, width if 3 in dynamic else 10)
        other = torch.randn(2, 3, *sizes)
        for got, wanted in zip(runner(other), model(other), strict=True):
            torch.testing.assert_close(got, wanted)
