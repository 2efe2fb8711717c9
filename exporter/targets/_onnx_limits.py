"""Translations to ONNX of operators whose translation by torch is wrong at infinity or loses small numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common, core, special

    ops: Any = opset18

    def clamp(inp: Any, low: Any = None, high: Any = None) -> Any:
        # Clip without one of its bounds makes infinity the largest number
        if (low is None) == (high is None) or not inp.dtype.is_floating_point():
            return core.aten_clamp(inp, low, high)
        limit = like(low if high is None else high, inp)
        beyond = ops.Less(inp, limit) if high is None else ops.Greater(inp, limit)
        return ops.Where(beyond, limit, inp)  # not Max or Min, which onnxruntime may make a Clip

    def clamp_min(inp: Any, low: Any) -> Any:
        return clamp(inp, low)

    def clamp_max(inp: Any, high: Any) -> Any:
        return clamp(inp, None, high)

    def clamp_min_tensor(inp: Any, low: Any) -> Any:
        return clamp(inp, low) if inp.dtype.is_floating_point() else core.aten_clamp_min_tensor(inp, low)

    def clamp_max_tensor(inp: Any, high: Any) -> Any:
        return clamp(inp, None, high) if inp.dtype.is_floating_point() else core.aten_clamp_max_tensor(inp, high)

    def like(bound: Any, inp: Any) -> Any:
        return ops.CastLike(bound, inp) if hasattr(bound, "dtype") else common.constant(bound, dtype=inp.dtype)

    def logsumexp(inp: Any, dim: Sequence[int] | int, keepdim: bool = False) -> Any:
        # onnxruntime's ReduceLogSumExp is -infinity for -infinity followed by numbers below -88
        if not inp.shape:
            return inp
        dims = [dim] if isinstance(dim, int) else list(dim) or list(range(len(inp.shape)))
        axes = ops.Constant(value_ints=dims)
        most = ops.ReduceMax(inp, axes, keepdims=1)
        zero, infinity = (common.constant(number, dtype=inp.dtype) for number in (0.0, math.inf))
        most = ops.Where(ops.Equal(ops.Abs(most), infinity), zero, most)  # IsInf takes no float16 before opset 20
        total = ops.ReduceSum(ops.Exp(ops.Sub(inp, most)), axes, keepdims=1)
        found = ops.Add(ops.Log(total), most)
        return found if keepdim else ops.Squeeze(found, axes)

    def log1p_of(inp: Any) -> Any:
        return log1p(inp, inp.dtype) if inp.dtype.is_floating_point() else core.aten_log1p(inp)

    def expm1(inp: Any) -> Any:
        # near 0, the rounded power belongs to another x, its logarithm: correct it in proportion
        if not inp.dtype.is_floating_point():
            return special.aten_special_expm1(inp)
        one, half = (common.constant(number, dtype=inp.dtype) for number in (1.0, 0.5))
        power = ops.Exp(inp)
        less = ops.Sub(power, one)
        exact = ops.Where(ops.Equal(power, one), inp, ops.Mul(inp, ops.Div(less, ops.Log(power))))
        return ops.Where(ops.Less(ops.Abs(inp), half), exact, less)

    aten: Any = torch.ops.aten
    return {
        aten.clamp.default: clamp,
        aten.clamp_min.default: clamp_min,
        aten.clamp_max.default: clamp_max,
        aten.clamp_min.Tensor: clamp_min_tensor,
        aten.clamp_max.Tensor: clamp_max_tensor,
        aten.logsumexp.default: logsumexp,
        aten.log1p.default: log1p_of,
        aten.expm1.default: expm1,
    }


def log1p(inp: Any, dtype: Any) -> Any:
    """Return the logarithm of 1 + x; near 0 that of a rounded x, corrected in proportion."""
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    ops: Any = opset18
    zero, half, one = (common.constant(number, dtype=dtype) for number in (0.0, 0.5, 1.0))
    total = ops.Add(inp, one)
    found, rounded = ops.Log(total), ops.Sub(total, one)
    exact = ops.Where(ops.Equal(rounded, zero), inp, ops.Mul(inp, ops.Div(found, rounded)))
    return ops.Where(ops.Less(ops.Abs(inp), half), exact, found)


def scatter_extreme(inp: Any, dim: int, index: Any, src: Any, reduce: str) -> Any:
    """Return the largest (`amax`) or smallest (`amin`) element of each group of floating-point numbers.

    torch's translation begins with the largest number, which infinity does not replace.
    """
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    ops: Any = opset18
    first = common.constant(-math.inf if reduce == "amax" else math.inf, dtype=inp.dtype)
    begun = ops.ScatterElements(inp, index, ops.Expand(first, ops.Shape(index)), axis=dim)
    return ops.ScatterElements(begun, index, src, axis=dim, reduction=reduce.removeprefix("a"))
