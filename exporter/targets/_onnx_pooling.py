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
            if (kernel := _kernel(inp, sizes)) is not None:
                return ops.AveragePool(inp, kernel_shape=kernel, strides=kernel)
            return _adaptive(inp, sizes, ops.ReduceMean)

        return call

    def adaptive_maximum(dims: int, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(inp: Any, output_size: Any) -> Any:
            sizes = _sizes(output_size, dims)
            if (kernel := _kernel(inp, sizes)) is not None:
                return usual(inp, kernel, kernel)
            return _adaptive(inp, sizes, ops.ReduceMax), ops.Constant(value_int=0)  # see require_no_indices

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


def _kernel(inp: Any, sizes: Sequence[Any]) -> list[int] | None:
    """Return the size of the windows, or None if it is not the same for all, or not known, or there is no batch."""
    before = inp.shape[-len(sizes) :]
    static = all(isinstance(size, int) for size in (*before, *sizes))
    if not static or len(inp.shape) != len(sizes) + 2 or any(a % b for a, b in zip(before, sizes, strict=True)):
        return None
    return [a // b for a, b in zip(before, sizes, strict=True)]


def _adaptive(inp: Any, sizes: Sequence[Any], reduce: Callable[..., Any]) -> Any:
    """Pool over windows that follow from the input's sizes, one dimension after another."""
    rank = len(inp.shape)
    pooled = inp
    for axis, size in enumerate(sizes, rank - len(sizes)):
        if inp.shape[axis] == size:
            continue
        if isinstance(size, int):
            pooled = _windows(pooled, axis, size, reduce)
        elif reduce.__name__ == "ReduceMean":
            pooled = _weighted(pooled, axis, rank, size)
        else:
            raise ValueError("adaptive max pooling to a size that depends on the input's has no translation")
    return pooled


def _windows(inp: Any, axis: int, size: int, reduce: Callable[..., Any]) -> Any:
    """Reduce each of as many windows as the result has elements along an axis."""
    from onnxscript import opset18

    ops: Any = opset18
    axes = ops.Constant(value_ints=[axis])
    if size == 1:
        return reduce(inp, axes, keepdims=1)
    length = ops.Shape(inp, start=axis, end=axis + 1)
    windows = []
    for at in range(size):
        start, end = _bounds(length, *(ops.Constant(value_ints=[number]) for number in (at, size)))
        windows.append(reduce(ops.Slice(inp, start, end, axes), axes, keepdims=1))
    return ops.Concat(*windows, axis=axis)


def _bounds(length: Any, at: Any, size: Any) -> tuple[Any, Any]:
    """Return where the window of an element starts and ends."""
    from onnxscript import opset18

    ops: Any = opset18
    one = ops.Constant(value_ints=[1])
    beyond = ops.Sub(ops.Add(ops.Mul(ops.Add(at, one), length), size), one)
    return ops.Div(ops.Mul(at, length), size), ops.Div(beyond, size)


def _weighted(inp: Any, axis: int, rank: int, size: Any) -> Any:
    """Average over windows along an axis, as many as a value of the graph says, as a product with a matrix."""
    from onnxscript import opset18

    ops: Any = opset18
    zero, one = ops.Constant(value_int=0), ops.Constant(value_int=1)
    length = ops.Shape(inp, start=axis, end=axis + 1)
    count = ops.Reshape(ops.Cast(size, to=INT64), ops.Constant(value_ints=[1]))
    place = ops.Unsqueeze(ops.Range(zero, ops.Squeeze(length), one), ops.Constant(value_ints=[1]))
    start, end = _bounds(length, ops.Range(zero, ops.Squeeze(count), one), count)
    inside = ops.And(ops.GreaterOrEqual(place, start), ops.Less(place, end))  # a row for each element of the input
    weights = ops.Div(ops.CastLike(inside, inp), ops.CastLike(ops.Sub(end, start), inp))
    order = [at for at in range(rank) if at != axis] + [axis]
    back = [order.index(at) for at in range(rank)]
    return ops.Transpose(ops.MatMul(ops.Transpose(inp, perm=order), weights), perm=back)
