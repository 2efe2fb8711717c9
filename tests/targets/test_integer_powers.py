"""Packages that raise an integer to the power of integers."""

from __future__ import annotations

from pathlib import Path

import torch
from support import packages

from exporter.targets import _integer_powers


class Powers(torch.nn.Module):
    def forward(self, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        few = n % 7
        return (
            torch.pow(2, few),
            3**n,
            torch.pow(-2, few.int()),
            torch.pow(300, few.to(torch.uint8)),
            torch.pow(2, few > 1),
            torch.pow(True, few),
            torch.pow(2, -few),
            torch.pow(2.5, few),
            torch.pow(2, few.float()),
        )


def test_powers_of_an_integer_are_integers(tmp_path: Path) -> None:
    n = torch.arange(6)
    program = torch.export.export(Powers(), (n,), dynamic_shapes=({0: torch.export.Dim("count", min=2, max=64)},))
    with _integer_powers.decomposed():
        package = packages.build(program, tmp_path / "powers.pt2")
    runner = torch._inductor.aoti_load_package(str(package))
    other = torch.arange(40)  # 3**39 is not a float64
    for got, wanted in zip(runner(other), Powers()(other), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0 if not wanted.is_floating_point() else 1e-6, atol=0)
