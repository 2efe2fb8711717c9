"""Operators whose translation to ONNX must hold at infinity and near zero."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.translating import Outputs, translated

from exporter.core.size_range import Range


def clamped(x: torch.Tensor) -> Outputs:
    return (
        x.clamp(max=50.0),
        x.clamp(min=-3.0),
        x.clamp(-1, 1),
        torch.clamp_max(x, 0.5),
        torch.clamp_min(x, 0.5),
        x.clamp(max=torch.tensor(2.0)),
        x.double().clamp(min=1e-10),
        x.nan_to_num(0.0, 1e3, -1e3).int().clamp(min=2),
        (x.clamp(max=50.0).softmax(-1)).nan_to_num(0.0),
        torch.clamp_min(x, x.flip(0)),
        torch.clamp_max(x.sign().int(), x.sign().flip(1).int()),
        torch.clamp_min(x.sign().long(), torch.tensor(0)),
    )


def clamped_again(x: torch.Tensor) -> Outputs:
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    return (
        x.clamp(min=0).clamp(max=1),
        x.clamp(min=-1).clamp(max=2),
        x.clamp(-3, 3).clamp(-2, 1),
        x.clamp(-5, 2).clamp(-4, 9),
        torch.maximum(torch.minimum(x, two), -one),
        torch.maximum(torch.minimum(x, one), -two),
        x.clamp(max=1.0).clamp(min=2.0),
    )


def sums(x: torch.Tensor) -> Outputs:
    return (
        torch.logsumexp(x, -1),
        torch.logsumexp(x, 0, keepdim=True),
        torch.logsumexp(x, (0, 1)),
        torch.logsumexp(x.double(), [1]),
    )


def small(x: torch.Tensor) -> Outputs:
    return torch.log1p(x.abs()), torch.expm1(x), torch.log1p(x.abs().double()), torch.expm1(x.double())


def halves(x: torch.Tensor) -> Outputs:
    half = x.clamp(-100, 100).half()
    return torch.logsumexp(half, -1), half.clamp(min=-1), half.clamp(max=2)


def extremes(x: torch.Tensor) -> Outputs:
    group = torch.arange(x.shape[1]).remainder(4).expand(x.shape)
    zeros = x.new_zeros(x.shape[0], 4)
    return (
        zeros.scatter_reduce(1, group, x, "amax", include_self=False),
        zeros.scatter_reduce(1, group, x, "amin", include_self=False),
        zeros.scatter_reduce(1, group, x, "amax"),
    )


ROWS = (
    (-math.inf, -200.0, -203.0, -210.0, -220.0, -230.0, -97.0),
    (-math.inf,) * 7,
    (math.inf, 1.0, -math.inf, 2.0, math.inf, -3.0, 0.0),
    (1e-8, -1e-7, 1e-6, -1e-5, 1e-20, 0.0, -0.0),
    (3e38, -3e38, 88.0, -88.0, 0.4, -0.49, 0.51),
    (100.0, -100.0, 12.0, -12.0, -math.inf, -math.inf, -math.inf),
)


def test_half_precision(tmp_path: Path) -> None:
    module, run = translated(halves, torch.randn(3, 5), {"rows": Range(2, 8), "columns": Range(4, 16)}, tmp_path)
    x = torch.randn(8, 16) * 10
    for found, expected in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(found), expected)


@pytest.mark.parametrize("function", [clamped, clamped_again, sums, small, extremes])
def test_values_are_torchs(function: Callable[[torch.Tensor], Outputs], tmp_path: Path) -> None:
    module, run = translated(function, torch.randn(3, 5), {"rows": Range(2, 8), "columns": Range(4, 16)}, tmp_path)
    for x in (torch.randn(3, 5), torch.randn(8, 16) * 10, torch.tensor(ROWS)):
        for found, expected in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(found), expected, rtol=2e-6, atol=1e-37, equal_nan=True)
