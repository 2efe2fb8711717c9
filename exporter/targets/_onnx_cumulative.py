"""Translations to ONNX of what is computed of all elements up to each.

They take memory for the square of the axis's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18

    ops: Any = opset18

    def logcumsumexp(inp: Any, dim: int) -> Any:
        if not inp.shape:
            return inp
        # torch's translation subtracts the largest of all, which makes zeros of small numbers
        terms, axis = _up_to_each(inp, dim, -math.inf)
        return ops.ReduceLogSumExp(terms, axis, keepdims=0)

    def extreme_so_far(sign: int) -> Callable[..., Any]:
        def call(inp: Any, dim: int) -> Any:
            if not inp.shape or not inp.dtype.is_floating_point():
                raise ValueError("cummax and cummin have a translation for floating-point numbers with dimensions only")
            terms, axis = _up_to_each(inp, dim, -sign * math.inf)
            find, arg = (ops.ReduceMax, ops.ArgMax) if sign > 0 else (ops.ReduceMin, ops.ArgMin)
            place = arg(terms, axis=dim % len(inp.shape) + 1, keepdims=0, select_last_index=1)
            return find(terms, axis, keepdims=0), place

        return call

    aten: Any = torch.ops.aten
    return {
        aten.logcumsumexp.default: logcumsumexp,
        aten.cummax.default: extreme_so_far(1),
        aten.cummin.default: extreme_so_far(-1),
    }


def _up_to_each(inp: Any, dim: int, otherwise: float) -> tuple[Any, Any]:
    """Return the elements up to each along an axis, in an axis after it, with a number in place of those after it.

    The new axis is returned, too.
    """
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    ops: Any = opset18
    rank = len(inp.shape)
    axis = dim % rank
    size = ops.Gather(ops.Shape(inp), ops.Constant(value_int=axis))
    place = ops.Range(ops.Constant(value_int=0), size, ops.Constant(value_int=1))
    row, column = (ops.Unsqueeze(place, ops.Constant(value_ints=[at])) for at in (0, -1))
    earlier = ops.GreaterOrEqual(column, row)
    if axis < rank - 1:
        earlier = ops.Unsqueeze(earlier, ops.Constant(value_ints=list(range(2, rank - axis + 1))))
    number = common.constant(otherwise, dtype=inp.dtype)
    terms = ops.Where(earlier, ops.Unsqueeze(inp, ops.Constant(value_ints=[axis])), number)
    return terms, ops.Constant(value_ints=[axis + 1])
