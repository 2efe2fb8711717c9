"""Translations to ONNX of cumulative operators.

Each step combines an element with the one that is 1, 2, 4 … places before it, so that none needs more memory than some
copies of its operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

INT64 = 7  # ONNX's number of a data type
MOST_STEPS = 24  # if the size is dynamic: it may be up to 2**24


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    from exporter.targets import _onnx_elementwise

    ops: Any = opset18

    def logcumsumexp(inp: Any, dim: int) -> Any:
        # torch's translation subtracts the largest of all, which makes zeros of small numbers
        if not inp.shape:
            return inp
        nothing = common.constant(-math.inf, dtype=inp.dtype)
        found = inp
        for before in _before_each(inp, dim):
            found = _onnx_elementwise.logaddexp(found, before(found, nothing), inp.dtype)
        return found

    def extreme(is_later: Callable[..., Any], sign: int) -> Callable[..., Any]:
        def call(inp: Any, dim: int) -> Any:
            if not inp.shape or not inp.dtype.is_floating_point():
                raise ValueError("cummax and cummin have a translation for floating-point numbers with dimensions only")
            nothing, nowhere = common.constant(-sign * math.inf, dtype=inp.dtype), ops.Constant(value_int=-1)
            size = ops.Shape(inp, start=dim % len(inp.shape), end=dim % len(inp.shape) + 1)
            numbers = ops.Range(ops.Constant(value_int=0), ops.Squeeze(size), ops.Constant(value_int=1))
            behind = ops.Constant(value_ints=list(range(1, len(inp.shape) - dim % len(inp.shape))))
            place = ops.Expand(ops.Unsqueeze(numbers, behind), ops.Shape(inp))
            found = inp
            for before in _before_each(inp, dim):
                earlier, earlier_place = before(found, nothing), before(place, nowhere)
                later = ops.Or(ops.IsNaN(found), ops.And(ops.Not(ops.IsNaN(earlier)), is_later(found, earlier)))
                found, place = ops.Where(later, found, earlier), ops.Where(later, place, earlier_place)
            return found, place

        return call

    aten: Any = torch.ops.aten
    return {
        aten.logcumsumexp.default: logcumsumexp,
        aten.cummax.default: extreme(ops.GreaterOrEqual, 1),
        aten.cummin.default: extreme(ops.LessOrEqual, -1),
    }


def _before_each(inp: Any, dim: int) -> list[Callable[..., Any]]:
    """Return functions that shift tensors of this shape by 1, 2, 4 … places along an axis, and fill in a number."""
    from onnxscript import opset18

    ops: Any = opset18
    rank = len(inp.shape)
    axis = dim % rank
    size = inp.shape[axis]
    whole = ops.Shape(inp, start=axis, end=axis + 1)
    axes, first = ops.Constant(value_ints=[axis]), ops.Constant(value_ints=[0])

    def shift(places: int) -> Callable[..., Any]:
        moved = ops.Min(ops.Constant(value_ints=[places]), whole)
        lead = ops.Concat(ops.Shape(inp, end=axis), moved, ops.Shape(inp, start=axis + 1), axis=0)

        def call(tensor: Any, number: Any) -> Any:
            kept = ops.Slice(tensor, first, ops.Sub(whole, moved), axes)
            return ops.Concat(ops.Expand(number, lead), kept, axis=axis)

        return call

    steps = (size - 1).bit_length() if isinstance(size, int) else MOST_STEPS
    return [shift(1 << step) for step in range(steps)]
