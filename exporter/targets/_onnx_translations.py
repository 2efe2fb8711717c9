"""Translations to ONNX of operators for which torch has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

INT32, INT64 = 6, 7  # ONNX's numbers of data types


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18

    def prod(inp: Any, dims: Sequence[int], output_dtype: int = 0) -> Any:
        ops: Any = opset18
        return ops.ReduceProd(inp, ops.Constant(value_ints=dims), keepdims=0)

    def median(inp: Any) -> Any:
        ops: Any = opset18
        return median_dim(ops.Reshape(inp, ops.Constant(value_ints=[-1])), 0)[0]

    def median_dim(inp: Any, dim: int, keepdim: bool = False) -> Any:
        ops: Any = opset18
        size = ops.Gather(ops.Shape(inp), ops.Constant(value_ints=[dim]), axis=0)
        half = ops.Div(ops.Add(size, ops.Constant(value_ints=[1])), ops.Constant(value_ints=[2]))
        smaller = ops.TopK(inp, half, axis=dim, largest=0, sorted=1)  # the median is the largest of these
        last = ops.Sub(half, ops.Constant(value_ints=[1]))
        found = tuple(ops.Gather(one, last, axis=dim) for one in smaller)
        return found if keepdim else tuple(ops.Squeeze(one, ops.Constant(value_ints=[dim])) for one in found)

    def searchsorted(
        sorted_sequence: Any,
        values: Any,
        out_int32: bool = False,
        right: bool = False,
        side: str | None = None,
        sorter: Any = None,
    ) -> Any:
        if sorter is not None:
            raise ValueError("a sorter has no translation")
        ops: Any = opset18
        row = ops.Unsqueeze(sorted_sequence, ops.Constant(value_ints=[-2]))
        column = ops.Unsqueeze(values, ops.Constant(value_ints=[-1]))
        from_right = side == "right" if side else right
        before = ops.Not(ops.Greater(row, column) if from_right else ops.GreaterOrEqual(row, column))  # NaN is last
        dtype = INT32 if out_int32 else INT64
        return ops.ReduceSum(ops.Cast(before, to=dtype), ops.Constant(value_ints=[-1]), keepdims=0)

    def bucketize(inp: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
        return searchsorted(boundaries, inp, out_int32, right)

    return {
        torch.ops.prims.prod.default: prod,  # torch decomposes cumprod into products
        torch.ops.aten.median.default: median,
        torch.ops.aten.median.dim: median_dim,
        torch.ops.aten.searchsorted.Tensor: searchsorted,
        torch.ops.aten.bucketize.Tensor: bucketize,
    }
