"""Attention in ONNX models: of any rank, with masks that leave nothing in some rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from support.translating import Outputs, require_same, translated
from torch.nn.functional import scaled_dot_product_attention as attention

from exporter.core.size_range import Range
from exporter.targets import Options, _onnx_attention, _onnx_translations


def without_heads(x: torch.Tensor) -> Outputs:
    likeness = x @ x.mT
    return (
        attention(x, x, x),
        attention(x, x, x, is_causal=True) + 1,
        attention(x, x, x, likeness > 0),
        attention(x, x, x, likeness[0], scale=0.3),
        attention(x[0], x[0], x[0]),
        attention(x[None, None], x[None, None], x[None, None]),
    )


def with_heads(x: torch.Tensor) -> Outputs:
    queries = torch.stack([x, x + 1, x * 2, -x], 1)
    keys = torch.cat([queries[:, :2], queries[:, 2:]], -2)
    return (
        attention(queries, keys, keys, enable_gqa=True),
        attention(queries, queries, queries, is_causal=True),
        attention(queries, queries[..., :1, :], queries[..., :1, :], is_causal=True),
    )


def padded(x: torch.Tensor) -> Outputs:
    """Rows of padding attend to nothing."""
    heads = torch.stack([x, x + 1], 1)
    length = x.shape[1]
    allowed = torch.arange(length)[:, None] >= torch.arange(length) + 1  # nothing for the first
    return (
        attention(heads, heads, heads, allowed),
        attention(heads, heads, heads, torch.where(allowed, 0.0, -torch.inf)),
        attention(heads, heads, heads, torch.where(allowed, 0.0, torch.finfo(torch.float32).min)),
        attention(x, x, x, allowed[None].expand(x.shape[0], -1, -1)),
    )


@pytest.mark.parametrize("function", [without_heads, with_heads, padded])
def test_values_are_torchs(function: Callable[[torch.Tensor], Outputs], tmp_path: Path) -> None:
    sizes = {"length": Range(2, 9), "width": Range(2, 20)}
    require_same(function, sizes, ((2, 4, 5), (2, 2, 20), (2, 9, 3)), tmp_path, rtol=1e-5)


def test_nan_is_not_removed(tmp_path: Path) -> None:
    module, run = translated(padded, torch.randn(2, 4, 5), {"length": Range(2, 9)}, tmp_path)
    x = torch.randn(2, 4, 5)
    x[0, 0, 0] = torch.nan
    for got, wanted in zip(run(x), module(x), strict=True):
        assert torch.equal(got[..., -1, :].isnan(), wanted[..., -1, :].isnan())


def test_nan_in_a_mask_is_not_removed(tmp_path: Path) -> None:
    def masked(x: torch.Tensor) -> Outputs:
        mask = torch.zeros(4, 4)
        mask[0], mask[1], mask[2, :2] = -torch.inf, torch.nan, -torch.inf
        return (attention(x, x, x, mask),)

    module, run = translated(masked, torch.randn(2, 4, 5), {}, tmp_path)
    x = torch.randn(2, 4, 5)
    (got,), (wanted,) = run(x), module(x)
    assert bool(got[:, 1].isnan().all())
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_numbers_of_half_the_size(tmp_path: Path) -> None:
    def halves(x: torch.Tensor) -> Outputs:
        half, large = x.half() * 2, x.half() * 200
        return attention(half, half, half), attention(large, large, large, (x[0] @ x[0].mT).half())

    module, run = translated(halves, torch.randn(2, 4, 5), {"width": Range(2, 9)}, tmp_path)
    x = torch.randn(2, 4, 7)
    for got, wanted in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def test_newer_opsets_have_an_operator_of_their_own(tmp_path: Path) -> None:
    operator = torch.ops.aten.scaled_dot_product_attention.default
    assert operator in _onnx_translations.table(_onnx_attention.ATTENTION_OPSET - 1)
    options = Options(opset=_onnx_attention.ATTENTION_OPSET)

    def masked(x: torch.Tensor) -> Outputs:
        heads = torch.stack([x, x + 1], 1)
        return attention(heads, heads, heads), attention(heads, heads, heads, torch.ones(4, 4).tril(-1) > 0)

    module, run = translated(masked, torch.randn(2, 4, 5), {"width": Range(2, 9)}, tmp_path, options)
    nodes = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.node
    assert [node.op_type for node in nodes].count("Attention") == 2
    x = torch.randn(2, 4, 7)
    for got, wanted in zip(run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
