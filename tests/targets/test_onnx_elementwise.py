"""Operators on single elements in ONNX models, at ordinary, large and infinite values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.translating import Outputs, translated
from torch.nn import functional

from exporter.core.size_range import Range


def sums_of_exponentials(x: torch.Tensor) -> Outputs:
    far, infinite = x * 200, x.sign() * torch.inf
    return (
        torch.logaddexp(far, far.flip(0)),
        torch.logaddexp2(far, x * 0),
        torch.logaddexp(x, x),
        torch.logaddexp(infinite, infinite),
        torch.logaddexp(infinite, x),
        torch.logaddexp((x * 900).double(), x.double()),
    )


def without_nan(x: torch.Tensor) -> Outputs:
    some = x.log()
    flags = x > 0
    return (
        torch.fmax(some, x),
        torch.fmin(x, some),
        torch.fmax(some, some),
        torch.fmax((x * 9).int(), (x * -9).int()),
        torch.fmax(flags, ~flags),
        torch.fmin(flags, ~flags),
    )


def signs(x: torch.Tensor) -> Outputs:
    zeros = x * 0
    return torch.copysign(x, zeros), torch.copysign(x, x.flip(0)), torch.copysign(x, -0.0), torch.copysign(x, 2)


def lengths(x: torch.Tensor) -> Outputs:
    huge, infinite = x * 1e30, x.sign() * torch.inf
    return (
        torch.hypot(x, x.flip(0)),
        torch.hypot(huge, huge),
        torch.hypot(x * 0, x * 0),
        torch.hypot(infinite, x),
        torch.hypot(infinite, infinite),
    )


def logarithms_of_sigmoids(x: torch.Tensor) -> Outputs:
    far = x * 30
    chance = far.sigmoid()
    return (
        chance.log(),
        chance,
        (far.sigmoid() + 1e-8).log(),
        (1 - far.sigmoid()).clamp(min=1e-12).log(),
        functional.binary_cross_entropy(torch.sigmoid(far), (x.flip(0) > 0).float(), reduction="none"),
        torch.log10(torch.sigmoid(far.double())),
        torch.log2(torch.sigmoid(far)),
    )


@pytest.mark.parametrize("function", [sums_of_exponentials, without_nan, signs, lengths, logarithms_of_sigmoids])
def test_values_are_torchs(function: Callable[[torch.Tensor], Outputs], tmp_path: Path) -> None:
    module, run = translated(function, torch.randn(3, 5), {"rows": Range(2, 8), "columns": Range(2, 16)}, tmp_path)
    for sizes in ((3, 5), (2, 16), (8, 3)):
        x = torch.randn(sizes)
        for got, wanted in zip(run(x), module(x), strict=True):
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
            known = ~wanted.isnan()
            assert torch.equal(got[known].signbit(), wanted[known].signbit())


HOSTILE = (0.0, -0.0, 1e-30, -1e-30, 1e-8, -1e-8, 0.05, 0.5, -7.3, 1.0, -10.0, -20.0, -80.0, 1e20, -1e20, math.inf,
           -math.inf, math.nan)  # fmt: skip


def pairs(x: torch.Tensor) -> Outputs:
    one, other = x[:, None], x[None]
    return (
        *(torch.heaviside(one, other), torch.xlogy(one, other), torch.atan2(one, other)),
        *(torch.logaddexp(one, other), torch.logaddexp2(one, other), torch.stack([x, x.flip(0)]).logcumsumexp(0)),
        *(torch.logit(x, 0.1), torch.logit(x), x.sign(), x.nan_to_num(0, 9, -9).int().sign(), x.sgn()),
    )


def test_hostile_values(tmp_path: Path) -> None:
    module, run = translated(pairs, torch.randn(5), {"length": Range(2, 99)}, tmp_path)
    x = torch.tensor(HOSTILE)
    for index, (got, wanted) in enumerate(zip(run(x), module(x), strict=True)):
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-37, equal_nan=True, msg=f"output {index}")
