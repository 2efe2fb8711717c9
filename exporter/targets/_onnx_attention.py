"""Translation of attention to ONNX.

torch's translation takes four dimensions only, and removes NaN from the weights. Where everything is masked,
as in a row of padding, it returns the mean of the values, or NaN if the mask is made of numbers; torch returns zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

UINT8, BOOL = 2, 9  # ONNX's numbers of data types
ATTENTION_OPSET = 23  # from this one on, torch translates to ONNX's own operator


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of the operator, as `torch.onnx.export` takes it."""
    import torch

    return {torch.ops.aten.scaled_dot_product_attention.default: _attention}


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    if dropout_p:
        raise ValueError("dropout in attention has no translation")
    ops: Any = opset18
    rank = len(query.shape)
    zero = common.constant(0.0, dtype=query.dtype)
    if enable_gqa:
        key, value = (_repeated(query, one) for one in (key, value))
    turned = ops.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = ops.MatMul(query, ops.Mul(turned, _scale(query, scale)))
    if is_causal:
        attn_mask = _causal(query, key)
    if attn_mask is not None:
        added = attn_mask
        if attn_mask.dtype == BOOL:
            added = ops.Where(attn_mask, zero, common.constant(query.dtype.min, dtype=query.dtype))
        scores = ops.Add(scores, added)
    found = ops.MatMul(ops.Softmax(scores, axis=-1), value)
    if attn_mask is None or is_causal:
        return found
    return ops.Where(_any(attn_mask), found, zero)


def _scale(query: Any, scale: float | None) -> Any:
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    ops: Any = opset18
    if scale is None and isinstance(size := query.shape[-1], int):
        scale = 1 / math.sqrt(size)
    if scale is not None:
        return common.constant(scale, dtype=query.dtype)
    size = ops.CastLike(ops.Shape(query, start=len(query.shape) - 1), query)
    return ops.Reciprocal(ops.Sqrt(size))


def _causal(query: Any, key: Any) -> Any:
    """Return which keys, one for each column, come no later than a query, one for each row."""
    from onnxscript import opset18

    ops: Any = opset18
    rank = len(query.shape)
    zero, one = ops.Constant(value_int=0), ops.Constant(value_int=1)
    row, column = (
        ops.Unsqueeze(
            ops.Range(zero, ops.Squeeze(ops.Shape(source, start=rank - 2, end=rank - 1)), one),
            ops.Constant(value_ints=[axis]),
        )
        for source, axis in ((query, 1), (key, 0))
    )
    allowed = ops.GreaterOrEqual(row, column)
    allowed.dtype = type(query.dtype)(BOOL)
    return allowed


def _any(mask: Any) -> Any:
    """Return whether a query may attend to any key."""
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    ops: Any = opset18
    last = ops.Constant(value_ints=[-1])
    if mask.dtype == BOOL:
        return ops.Cast(ops.ReduceMax(ops.Cast(mask, to=UINT8), last, keepdims=1), to=BOOL)
    nothing = ops.Equal(mask, common.constant(-math.inf, dtype=mask.dtype))
    return ops.Cast(ops.ReduceMax(ops.Cast(ops.Not(nothing), to=UINT8), last, keepdims=1), to=BOOL)


def _repeated(query: Any, heads: Any) -> Any:
    """Return keys or values with as many heads as the queries: each of them as often as needed, in a row."""
    from onnxscript import opset18

    ops: Any = opset18
    rank = len(query.shape)
    wanted, given = query.shape[-3], heads.shape[-3]
    if wanted == given:
        return heads
    if not isinstance(wanted, int) or not isinstance(given, int):
        raise ValueError("grouped queries with a dynamic number of heads have no translation")
    after = ops.Constant(value_ints=[rank - 2])
    leading, trailing = ops.Shape(heads, end=rank - 2), ops.Shape(heads, start=rank - 2)
    times = ops.Constant(value_ints=[wanted // given])
    many = ops.Expand(ops.Unsqueeze(heads, after), ops.Concat(leading, times, trailing, axis=0))
    before = ops.Shape(heads, end=rank - 3)
    return ops.Reshape(many, ops.Concat(before, ops.Constant(value_ints=[wanted]), trailing, axis=0))
