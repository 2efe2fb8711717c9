"""What is changed in an exported program before its translation to ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.translating import Outputs, translated
from torch.nn.functional import scaled_dot_product_attention as attention

from exporter.core.size_range import Range


def without_heads(x: torch.Tensor) -> Outputs:
    likeness = x @ x.mT
    return (
        attention(x, x, x),
        attention(x, x, x, is_causal=True) + 1,
        attention(x, x, x, likeness > 0),
        attention(x, x, x, likeness[0], scale=0.3),
        attention(x[0], x[0], x[0]),
    )


def inverses(x: torch.Tensor) -> Outputs:
    matrices = x @ x.mT + torch.eye(x.shape[1])
    return (
        torch.linalg.inv(matrices),
        matrices[0].inverse(),
        torch.linalg.solve(matrices, x),
        torch.linalg.solve(matrices, x[..., 0]),
        torch.linalg.solve(matrices, x.mT, left=False),
    )


@pytest.mark.parametrize("function", [without_heads, inverses])
def test_values_are_torchs(function: Callable[[torch.Tensor], Outputs], tmp_path: Path) -> None:
    module, run = translated(function, torch.randn(2, 4, 5), {"length": Range(2, 9), "width": Range(2, 20)}, tmp_path)
    for length, width in ((4, 5), (2, 20), (9, 3)):
        x = torch.randn(2, length, width)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
