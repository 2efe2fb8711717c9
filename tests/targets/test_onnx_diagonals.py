"""Diagonals that are read and replaced in ONNX models."""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir
import pytest
import torch
from support.translating import Function, Outputs, translated

from exporter.core.size_range import Range
from exporter.targets import _onnx_diagonals

SIZES = {"length": Range(2, 16), "width": Range(2, 16)}


def kernel(x: torch.Tensor) -> Outputs:
    found = torch.exp(-0.5 * torch.cdist(x, x).square())
    found.diagonal(dim1=-2, dim2=-1).add_(1e-3)
    return (found,)


def replaced(x: torch.Tensor) -> Outputs:
    products = x.transpose(1, 2) @ x
    return (
        torch.diagonal_scatter(products, x[:, 0], dim1=1, dim2=2),
        torch.diagonal_scatter(products, x[:, 0, 1:], 1, 2, 1),
        torch.diagonal_scatter(products, x[:, 0, 1:], -1, -2, -1),
        torch.diagonal_scatter(products.permute(1, 0, 2), x[:, 0], 0, 0, 2),
        torch.diagonal_scatter(products.permute(2, 1, 0), x[:, 1], 0, 1, 0),
        torch.diagonal_scatter(products[0], x[0, 1]),
        torch.diagonal_scatter(x, x.diagonal(-3, 1, 2) + 1, -3, 1, 2),
        torch.diagonal_scatter(x, x.diagonal(3, 1, 2) + 1, 3, 1, 2),
    )


def written(x: torch.Tensor) -> Outputs:
    flags, counts, scores = x > 0, (x * 9).int(), x.clone()
    flags.diagonal(dim1=1, dim2=2).logical_not_()
    counts.diagonal(dim1=-1, dim2=-2).mul_(-2)
    scores.diagonal(1, 1, 2).fill_(-math.inf)
    halves = x.half()
    halves.diagonal(-1, 1, 2).copy_(x.diagonal(-1, 1, 2) * 2)
    wide = (x * 9).long() + 2**53
    wide.diagonal(0, 1, 2).add_(1)
    small = (x * 9).to(torch.int8)
    small.diagonal(0, 1, 2).add_(1)
    return flags, counts, scores, halves, wide, small


def read(x: torch.Tensor) -> Outputs:
    return (
        *(x.diagonal(offset, *dims) for offset in (-3, -1, 0, 1, 3) for dims in ((0, 1), (1, 2), (-1, 0), (2, 1))),
        *((x > 0).diagonal(1, 1, 2), torch.diag(x[0]), x[0].trace(), ((x * 9).long() + 2**53).diagonal(0, 1, 2)),
        *(torch.diag_embed(x, 1), torch.diag(x[0, 0], -1), torch.block_diag(x[0], x[1])),
    )


@pytest.mark.parametrize("compute", [kernel, replaced, written, read])
def test_values_are_torchs(compute: Function, tmp_path: Path) -> None:
    module, run = translated(compute, torch.randn(2, 4, 5), SIZES, tmp_path)
    for shape in ((2, 4, 5), (2, 5, 5), (2, 2, 7), (2, 9, 3), (2, 16, 16), (2, 2, 2)):
        x = torch.randn(shape)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_infinity_elsewhere_does_not_reach_a_diagonal(tmp_path: Path) -> None:
    def compute(x: torch.Tensor) -> Outputs:
        scores = x.clone()
        scores.diagonal(0, 1, 2).add_(1)
        return x.diagonal(0, 1, 2), scores

    module, run = translated(compute, torch.randn(2, 4, 5), SIZES, tmp_path)
    x = torch.full((2, 6, 3), math.inf)
    x[0, :, 1], x[1, 2] = -math.inf, math.nan
    x.diagonal(0, 1, 2).copy_(torch.tensor([1.0, -0.0, 2.0]))
    for got, wanted in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("sizes", "same"), [((3, 3), True), (("n", "n"), True), ((3, 4), False), (("n", "k"), False), ((None, None), False)]
)
def test_sizes_that_are_known_to_be_the_same(sizes: tuple[int | str | None, ...], same: bool) -> None:
    assert _onnx_diagonals._is_same(*onnx_ir.Shape(sizes)) == same
