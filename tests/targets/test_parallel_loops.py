"""Loops of generated kernels keep all threads busy at the smallest sizes too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support import packages
from torch import nn

from exporter.targets import _parallel_loops


class Scaled(nn.Module):
    """A pointwise kernel, whose loops over the batch and over the pixels cannot be merged."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2 + 1).permute(0, 2, 3, 1).contiguous()


def directives(sizes: dict[int, object], shape: tuple[int, ...], folder: Path) -> list[str]:
    """Return what the package's loops say of threads, after calls with the example and the smallest batch."""
    example = torch.randn(shape)
    program = torch.export.export(Scaled(), (example,), dynamic_shapes=(sizes,))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad(), _parallel_loops.at_all_sizes():
            found = packages.build(program, folder / "loops.pt2", **{"cpp.dynamic_threads": True})
    finally:
        torch.set_num_threads(before)
    loaded = torch._inductor.aoti_load_package(str(found))
    for x in (example, example[:1] if len(example) == 2 and 0 in sizes else example):
        assert torch.equal(loaded(x), Scaled()(x))
    return re.findall(r"#pragma omp for.*", packages.sources(found))


@pytest.mark.parametrize(
    ("sizes", "shape", "expected"),
    [
        ({0: torch.export.Dim("n", max=32)}, (2, 3, 64, 64), "#pragma omp for collapse(2)"),
        ({0: torch.export.Dim("n", min=4, max=32)}, (4, 3, 64, 64), "#pragma omp for"),  # two threads are busy
        ({0: torch.export.Dim("n", max=32)}, (2, 3, 4, 64), "#pragma omp for"),  # too little work for an image
        ({2: torch.export.Dim("h", max=64)}, (2, 3, 64, 64), "#pragma omp for"),  # the batch is 2
    ],
)
def test_loops_that_two_threads_share(
    sizes: dict[int, object], shape: tuple[int, ...], expected: str, tmp_path: Path
) -> None:
    assert directives(sizes, shape, tmp_path) == [expected]
