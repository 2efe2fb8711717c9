"""Translations to ONNX of pooling: adaptive windows at any size, and averages with a divisor of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

INT64 = 7  # ONNX's number of a data type


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import nn

    ops: Any = opset18

    def average(dims: int, usual: Callable[..., Any]) -> Callable[..., Any]:
        return lambda inp, kernel_size, *settings: _divided(dims, usual, inp, kernel_size, *settings)

    def adaptive_average(dims: int) -> Callable[..., Any]:
        def call(inp: Any, output_size: Any) -> Any:
            sizes = _sizes(output_size, dims)
            if (kernel := equal_windows(inp.shape, sizes)) is not None:
                return ops.AveragePool(inp, kernel_shape=kernel, strides=kernel)
            return _adaptive(inp, sizes, is_mean=True)

        return call

    def adaptive_maximum(dims: int, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(inp: Any, output_size: Any) -> Any:
            sizes = _sizes(output_size, dims)
            if (kernel := equal_windows(inp.shape, sizes)) is not None:
                return usual(inp, kernel, kernel)
            return _adaptive(inp, sizes, is_mean=False), ops.Constant(value_int=0)  # `_onnx_preparing` refuses its use

        return call

    aten: Any = torch.ops.aten
    return {
        aten.avg_pool2d.default: average(2, nn.aten_avg_pool2d),
        aten.avg_pool3d.default: average(3, nn.aten_avg_pool3d),
        aten._adaptive_avg_pool2d.default: adaptive_average(2),
        aten._adaptive_avg_pool3d.default: adaptive_average(3),
        aten.adaptive_max_pool2d.default: adaptive_maximum(2, nn.aten_max_pool2d_with_indices),
        aten.adaptive_max_pool3d.default: adaptive_maximum(3, nn.aten_max_pool3d_with_indices),
    }


def _divided(dims: int, usual: Callable[..., Any], inp: Any, kernel_size: Sequence[int], *settings: Any) -> Any:
    """Translate the mean over windows, with a divisor of its own, which torch's translation ignores."""
    from onnxscript import opset18

    names = ("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = dict(zip(names, settings, strict=False))
    divisor = given.pop("divisor_override", None)
    if divisor is None:
        return usual(inp, kernel_size, **given)
    if given.get("ceil_mode"):  # windows that end outside the padding have another size
        raise ValueError("a divisor with ceil_mode has no translation")
    ops: Any = opset18
    mean = usual(inp, kernel_size, **(given | {"count_include_pad": True}))
    elements = math.prod(kernel_size) if len(kernel_size) > 1 else kernel_size[0] ** dims
    return ops.Mul(mean, ops.CastLike(ops.Constant(value_float=elements / divisor), mean))


def _sizes(output_size: Any, dims: int) -> list[Any]:
    """Return the sizes of a result, each an int or an ONNX value."""
    from onnxscript import opset18

    if isinstance(output_size, (list, tuple)):
        return list(output_size)
    ops: Any = opset18
    return [ops.Gather(output_size, ops.Constant(value_int=axis)) for axis in range(dims)]


def equal_windows(shape: Sequence[Any], sizes: Sequence[Any]) -> list[int] | None:
    """Return the size of the windows, or None if it is not the same for all, or not known, or there is no batch."""
    before = shape[-len(sizes) :]
    static = all(isinstance(size, int) for size in (*before, *sizes))
    if not static or len(shape) != len(sizes) + 2 or any(a % b for a, b in zip(before, sizes, strict=True)):
        return None
    return [a // b for a, b in zip(before, sizes, strict=True)]


def _adaptive(inp: Any, sizes: Sequence[Any], is_mean: bool) -> Any:
    """Pool over windows that follow from the input's sizes, one dimension after another."""
    from onnxscript import opset18

    ops: Any = opset18
    rank = len(inp.shape)
    pooled = inp
    for axis, size in enumerate(sizes, rank - len(sizes)):
        if isinstance(size, int) and size == 1:
            reduce = ops.ReduceMean if is_mean else ops.ReduceMax
            pooled = reduce(pooled, ops.Constant(value_ints=[axis]), keepdims=1)
        elif not isinstance(size, int) or inp.shape[axis] != size:
            pooled = _along(pooled, axis, (rank, inp.dtype), size, is_mean)
    return pooled


def _along(inp: Any, axis: int, form: tuple[int, Any], size: Any, is_mean: bool) -> Any:
    """Pool along an axis: gather the elements of each window, up to the longest, and leave out those beyond its end."""
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    ops: Any = opset18
    rank, dtype = form
    zero, one, ones = ops.Constant(value_int=0), ops.Constant(value_int=1), ops.Constant(value_ints=[1])
    if isinstance(size, int):
        count = ops.Constant(value_ints=[size])
    else:
        count = ops.Reshape(ops.Cast(size, to=INT64), ops.Constant(value_ints=[1]))
    length = ops.Shape(inp, start=axis, end=axis + 1)
    at = ops.Unsqueeze(ops.Range(zero, ops.Squeeze(count), one), ones)  # a row for each window
    start = ops.Div(ops.Mul(at, length), count)
    end = ops.Div(ops.Sub(ops.Add(ops.Mul(ops.Add(at, ones), length), count), ones), count)
    lengths = ops.Sub(end, start)
    index = ops.Add(start, ops.Range(zero, ops.ReduceMax(lengths, keepdims=0), one))
    behind = ops.Constant(value_ints=list(range(2, rank - axis + 1)))
    inside = ops.Less(index, end)
    if axis < rank - 1:
        inside, lengths = ops.Unsqueeze(inside, behind), ops.Unsqueeze(lengths, behind)
    windows = ops.Gather(inp, ops.Min(index, ops.Sub(length, ones)), axis=axis)
    windows = ops.Where(inside, windows, common.constant(0.0 if is_mean else -math.inf, dtype=dtype))
    within = ops.Constant(value_ints=[axis + 1])
    if not is_mean:
        return ops.ReduceMax(windows, within, keepdims=0)
    total = ops.ReduceSum(windows, within, keepdims=1)
    return ops.Squeeze(ops.Div(total, ops.Cast(lengths, to=dtype)), within)
