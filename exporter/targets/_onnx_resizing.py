"""Translations to ONNX of interpolation by factors, with the sizes that torch computes in float64.

ONNX's Resize multiplies sizes by the factors in float32, which makes 63 of 0.7 * 90, and torch 62.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

FLOAT, INT64, DOUBLE = 1, 7, 11  # ONNX's numbers of data types


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript.function_libs.torch_lib.ops import nn

    def nearest(inp: Any, output_size: Any = None, scale_factors: Sequence[float] | None = None) -> Any:
        if scale_factors is None:
            return nn.aten_upsample_nearestnd_vec(inp, output_size, scale_factors)
        return _picked(inp, scale_factors)

    def nearest_pixel(inp: Any, output_size: Any = None, scale_factors: Sequence[float] | None = None) -> Any:
        if scale_factors is None:
            return nn.aten_upsample_nearestnd_vec(inp, output_size, scale_factors)
        return _picked(inp, scale_factors, shortcuts=True)

    def smooth(mode: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(inp: Any, output_size: Any, align_corners: bool, scale_factors: Sequence[float] | None) -> Any:
            if scale_factors is None:
                return usual(inp, output_size, align_corners, scale_factors)
            return _scaled(inp, scale_factors, align_corners, mode=mode, cubic_coeff_a=-0.75)

        return call

    def antialiased(mode: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(inp: Any, output_size: Any, align_corners: bool, *factors: float | None) -> Any:
            if None in (*factors, None)[:2]:
                return usual(inp, output_size, align_corners)
            return _scaled(inp, factors, align_corners, mode=mode, cubic_coeff_a=-0.5, antialias=1, exclude_outside=1)

        return call

    def linear_to_size(inp: Any, output_size: Any, align_corners: bool, *_: Any) -> Any:
        return nn.aten_upsample_linear1d(inp, output_size, align_corners)

    aten: Any = torch.ops.aten
    return {
        aten.upsample_nearest1d.vec: nearest,
        aten.upsample_nearest2d.vec: nearest_pixel,
        aten.upsample_nearest3d.vec: nearest,
        aten.upsample_linear1d.vec: smooth("linear", linear_to_size),
        aten.upsample_bilinear2d.vec: smooth("linear", nn.aten_upsample_bilinear2d_vec),
        aten.upsample_trilinear3d.vec: smooth("linear", nn.aten_upsample_trilinear3d_vec),
        aten.upsample_bicubic2d.vec: smooth("cubic", nn.aten_upsample_bicubic2d_vec),
        aten._upsample_bilinear2d_aa.default: antialiased("linear", nn.aten__upsample_bilinear2d_aa),
        aten._upsample_bicubic2d_aa.default: antialiased("cubic", nn.aten__upsample_bicubic2d_aa),
    }


def _scaled(inp: Any, factors: Sequence[Any], align_corners: bool, **how: Any) -> Any:
    """Interpolate between values."""
    from onnxscript import opset18

    ops: Any = opset18
    sizes = [_size(ops, inp, axis, factor) for axis, factor in enumerate(factors, 2)]
    if align_corners:  # the coordinates depend on the size, not on the factor
        shape = ops.Concat(ops.Shape(inp, start=0, end=2), *sizes, axis=0)
        return ops.Resize(inp, None, None, shape, coordinate_transformation_mode="align_corners", **how)
    near = list(map(_at_least, factors))
    given = ops.Constant(value_floats=[1.0, 1.0, *near])
    resized = ops.Resize(inp, None, given, None, coordinate_transformation_mode="half_pixel", **how)
    inexact = [at for at, factor in enumerate(factors) if not _is_short(factor)]
    if not inexact:
        return resized
    ends = ops.Concat(*(sizes[at] for at in inexact), axis=0)
    axes = ops.Constant(value_ints=[at + 2 for at in inexact])
    return ops.Slice(resized, ops.Constant(value_ints=[0] * len(inexact)), ends, axes)


def _is_short(factor: float) -> bool:
    """Return whether products of a factor and any size are exact in float32."""
    return float(factor * 256).is_integer()


def _is_cut_short(factor: float) -> bool:
    """Return whether a size of 2 or more may stay the same or double though the factor is not 1 or 2."""
    return 1 < factor < 1.5 or 2 < factor < 2.5


def _at_least(factor: float) -> float:
    """Return the smallest number of float32 that is not below a factor, so that no size is smaller than torch's."""
    import numpy as np

    near = np.float32(factor)
    return float(near if float(near) >= factor else np.nextafter(near, np.float32(math.inf)))


def _picked(inp: Any, factors: Sequence[float], shortcuts: bool = False) -> Any:
    """Interpolate by the value at the position that torch computes in float32.

    With `shortcuts`, values are copied or doubled where the size stays the same or doubles, whatever the factor is, as
    torch's kernel for images does.
    """
    from onnxscript import opset18

    ops: Any = opset18
    exact = [factor if _is_short(factor) and not (shortcuts and _is_cut_short(factor)) else 1.0 for factor in factors]
    picked = inp
    if any(factor != 1.0 for factor in exact):
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        picked = ops.Resize(inp, None, ops.Constant(value_floats=[1.0, 1.0, *exact]), None, **how)
    one, zero = ops.Constant(value_int=1), ops.Constant(value_int=0)
    for axis, (factor, done) in enumerate(zip(factors, exact, strict=True), 2):
        if factor != done:
            size = ops.Squeeze(_size(ops, inp, axis, factor))
            before = ops.Squeeze(ops.Shape(inp, start=axis, end=axis + 1))
            place = ops.Range(zero, size, one)
            origin = ops.Mul(ops.Cast(place, to=FLOAT), ops.Constant(value_float=1 / factor))
            nearest = ops.Min(ops.Cast(ops.Floor(origin), to=INT64), ops.Sub(before, one))
            if shortcuts:
                two = ops.Constant(value_int=2)
                doubled = ops.Where(ops.Equal(size, ops.Mul(before, two)), ops.Div(place, two), nearest)
                nearest = ops.Where(ops.Equal(size, before), place, doubled)
            picked = ops.Gather(picked, nearest, axis=axis)
    return picked


def _size(ops: Any, inp: Any, axis: int, factor: float) -> Any:
    """Return a size of the result, in one dimension."""
    import numpy as np
    import onnx

    if isinstance(size := inp.shape[axis], int):
        return ops.Constant(value_ints=[math.floor(size * factor)])
    exact = ops.Constant(value=onnx.numpy_helper.from_array(np.array([factor])))
    product = ops.Mul(ops.Cast(ops.Shape(inp, start=axis, end=axis + 1), to=DOUBLE), exact)
    return ops.Cast(ops.Floor(product), to=INT64)
