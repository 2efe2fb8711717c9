"""Special functions in ONNX models, compared with float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.translating import translated

from exporter.core.size_range import Range

Function = Callable[[torch.Tensor], torch.Tensor]
HOSTILE = torch.tensor((0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 2.0, -2.0, -3.0, 0.5, -2.5, 1e20, -1e20, 3e38, -3e38,
                        math.inf, -math.inf, math.nan))  # fmt: skip
NEAR_ONE = 1 + torch.linspace(-1e-2, 1e-2, 401)
GAMMA = torch.cat(
    [torch.linspace(-19.9, 60, 4001), NEAR_ONE, 1 + NEAR_ONE, 0.4616321 + NEAR_ONE, torch.logspace(1, 36, 99)]
)


@pytest.mark.parametrize(
    ("function", "x", "rtol"),
    [
        (torch.erfc, torch.linspace(-6, 9, 4001), 1e-6),
        (torch.special.erfcx, torch.cat([torch.linspace(-9, 30, 4001), torch.logspace(2, 38, 99)]), 1e-6),
        (torch.special.log_ndtr, torch.linspace(-100, 4.5, 4001), 3e-5),
        (torch.erfinv, torch.cat([torch.linspace(-0.9999, 0.9999, 4001), 1 - torch.logspace(-7, -2, 99)]), 1e-6),
        (torch.lgamma, GAMMA, 1e-6),
        (torch.digamma, GAMMA, 1e-6),
    ],
)
def test_values_are_exact(function: Function, x: torch.Tensor, rtol: float, tmp_path: Path) -> None:
    module, run = translated(lambda x: (function(x),), x[:9], {"length": Range(4, 8000)}, tmp_path)
    (got,) = run(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got.double(), function(x.double()), rtol=rtol, atol=1e-14 if function is torch.lgamma else 1e-37
    )
    torch.testing.assert_close(run(HOSTILE)[0], module(HOSTILE)[0], rtol=1e-5, atol=1e-14, equal_nan=True)


def test_other_precisions(tmp_path: Path) -> None:
    def all_of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide, half = x.double(), x.half()
        return (
            *(torch.lgamma(wide), torch.digamma(wide), torch.lgamma(half), torch.digamma(half)),
            *(torch.erfc(half), torch.erfinv(half), torch.erfinv(wide)),
        )

    module, run = translated(all_of, torch.rand(9), {"length": Range(4, 200)}, tmp_path)
    x = torch.linspace(0.01, 0.98, 101)
    for got, wanted in zip(run(x), module(x), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=2e-3 if got.dtype == torch.half else 1e-7, atol=1e-7)
