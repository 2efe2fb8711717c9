"""`interpolate` by factors of sizes in a trace, at other sizes than the example's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from exporter.targets import _tracing

SIDE = 37  # 37 * (height / 37) may be less than the height, with numbers in float32 more often than in float64


def _embeddings(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[2] // 4 + 0.1, x.shape[3] // 4 + 0.1
    factors = (height / math.sqrt(SIDE**2), width / math.sqrt(SIDE**2))
    return F.interpolate(table, scale_factor=factors, mode="bicubic", align_corners=False)


def _exact(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(table, scale_factor=(x.shape[2] / SIDE, x.shape[3] / SIDE), mode="nearest")


def _one_factor(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(table, scale_factor=x.shape[3] / 20, mode="bilinear", antialias=True)


def _one_dynamic(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(table, None, [0.5, x.shape[3] / 12], "bilinear", True, True)


def _sized(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(table, size=x.shape[2:]) + F.interpolate(x[:, :1], x.shape[2:], mode="bicubic")


class Resizing(nn.Module):
    def __init__(self, resize: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.resize = resize
        self.register_buffer("table", torch.randn(1, 2, SIDE, SIDE, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.resize(self.table, x)


@pytest.mark.parametrize("resize", [_embeddings, _exact, _one_factor, _one_dynamic, _sized])
def test_a_factor_of_sizes_is_not_fixed(resize: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    model = Resizing(resize).eval()
    with torch.no_grad(), _tracing.warned():
        traced = torch.jit.freeze(_tracing.trace(model, (torch.randn(2, 3, 16, 20),)).eval())
    for height, width in ((16, 20), (8, 40), (24, 24), *((side, side + 1) for side in range(40, 80, 3))):
        x = torch.randn(2, 3, height, width)
        torch.testing.assert_close(traced(x), model(x), rtol=1e-5, atol=1e-5)
