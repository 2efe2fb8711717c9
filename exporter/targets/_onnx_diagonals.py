"""Translations to ONNX of reading a diagonal and of replacing it.

torch decomposes the one that replaces it into a write, and multiplies by a mask to read it, which makes NaN of infinity
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

UINT8, INT8, INT16, INT32, BOOL = 2, 3, 5, 6, 9  # ONNX's numbers of data types
WIDER = {BOOL: UINT8, INT8: INT32, INT16: INT32}  # what onnxruntime pads and chooses, instead of what it does not


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch

    aten: Any = torch.ops.aten
    return {
        aten.diagonal.default: _diagonal,
        aten.diagonal_copy.default: _diagonal,
        aten.diagonal_scatter.default: _replaced,
    }


def _diagonal(inp: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    from onnxscript import opset18

    ops: Any = opset18
    rank = len(inp.shape)
    rows, columns = dim1 % rank, dim2 % rank
    others = [axis for axis in range(rank) if axis not in (rows, columns)]
    height, width = (ops.Shape(inp, start=axis, end=axis + 1) for axis in (rows, columns))
    moved = ops.Transpose(inp, perm=[*others, rows, columns])
    kept = [ops.Shape(moved, start=0, end=rank - 2)] if others else []
    flat = ops.Reshape(moved, ops.Concat(*kept, ops.Mul(height, width), axis=0), allowzero=1)
    zero, one = ops.Constant(value_int=0), ops.Constant(value_int=1)
    below, after = (ops.Constant(value_ints=[max(by, 0)]) for by in (-offset, offset))
    size = ops.Squeeze(ops.Min(ops.Sub(height, below), ops.Sub(width, after)))
    first = ops.Add(ops.Mul(below, width), after)
    steps = ops.Mul(ops.Range(zero, ops.Max(size, zero), one), ops.Add(width, one))
    return ops.Gather(flat, ops.Add(steps, first), axis=rank - 2)


def _replaced(inp: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Choose the source where an element is on the diagonal."""
    from onnxscript import opset18

    ops: Any = opset18
    rank = len(inp.shape)
    rows, columns = dim1 % rank, dim2 % rank
    zero, one = ops.Constant(value_int=0), ops.Constant(value_int=1)

    def places(axis: int) -> Any:
        size = ops.Squeeze(ops.Shape(inp, start=axis, end=axis + 1))
        rest = ops.Constant(value_ints=[other for other in range(rank) if other != axis])
        return ops.Unsqueeze(ops.Range(zero, size, one), rest)

    wide = WIDER.get(inp.dtype, inp.dtype)
    given, new = (one if one.dtype == wide else ops.Cast(one, to=wide) for one in (inp, src))
    if offset or not _is_same(inp.shape[rows], inp.shape[columns]):  # an element for each row
        height = ops.Shape(inp, start=rows, end=rows + 1)
        before = ops.Min(ops.Constant(value_ints=[max(-offset, 0)]), height)
        after = ops.Sub(ops.Sub(height, before), ops.Shape(src, start=rank - 2, end=rank - 1))
        new = ops.Pad(new, ops.Concat(before, after, axis=0), None, ops.Constant(value_ints=[rank - 2]))
    order = list(range(rank - 2))
    order.insert(rows - (rows > columns), rank - 2)
    new = ops.Unsqueeze(ops.Transpose(new, perm=order), ops.Constant(value_ints=[columns]))
    on_diagonal = ops.Equal(ops.Add(places(rows), ops.Constant(value_int=offset)), places(columns))
    chosen = ops.Where(on_diagonal, new, given)
    return chosen if wide == inp.dtype else ops.Cast(chosen, to=inp.dtype)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two sizes are known to be the same: numbers, or symbols with a name."""
    return bool(one == other) and getattr(one, "value", one) is not None
