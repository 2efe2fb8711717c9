"""Translations to ONNX of operators on single elements for which torch has none, or a wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FLOAT, BOOL, DOUBLE = 1, 9, 11  # ONNX's numbers of data types


def exact_sigmoid(inp: torch.Tensor) -> torch.Tensor:
    """Return the sigmoid for a logarithm: that of onnxruntime is 0 below -18, and inexact from -7 on."""
    return inp.sigmoid()


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common, core, special

    ops: Any = opset18

    def signbit(inp: Any) -> Any:
        if inp.dtype == BOOL:
            return ops.And(inp, ops.Not(inp))
        zero = ops.CastLike(ops.Constant(value_float=0.0), inp)
        negative = ops.Less(inp, zero)
        if not inp.dtype.is_floating_point():
            return negative
        return ops.Or(negative, ops.Less(ops.Reciprocal(inp), zero))  # the reciprocal of -0.0 is -infinity

    def atan2(one: Any, other: Any) -> Any:
        # torch's translation is -pi, not pi, for 0 and a negative number, and 0 for NaN
        zero, pi = (common.constant(number, dtype=one.dtype) for number in (0.0, math.pi))
        above, right = (ops.Not(ops.Or(ops.Less(x, zero), ops.Less(ops.Reciprocal(x), zero))) for x in (one, other))
        diagonal = ops.Where(ops.Equal(one, zero), one, ops.Mul(ops.Sign(one), ops.Sign(other)))  # infinities too
        slope = ops.Where(ops.Equal(ops.Abs(one), ops.Abs(other)), diagonal, ops.Div(one, other))
        return ops.Add(ops.Atan(slope), ops.Where(right, zero, ops.Where(above, pi, ops.Neg(pi))))

    def div_mode(one: Any, other: Any, rounding_mode: str | None = None) -> Any:
        if not _are_integers(one, other) or rounding_mode is None:  # torch's translation rounds integers to float32
            return core.aten_div_mode(one, other, rounding_mode)
        return ops.Div(one, other) if rounding_mode == "trunc" else _floored(one, other)

    def floor_divide(one: Any, other: Any) -> Any:
        if hasattr(one, "dtype"):
            return div_mode(one, other, "floor")
        number = common.constant(one, dtype=other.dtype)
        return _floored(number, other) if other.dtype.is_integer() else ops.Floor(ops.Div(number, other))

    def fmod(one: Any, other: Any) -> Any:
        # torch's translation computes integers in float64
        if not _are_integers(one, other):
            return ops.Mod(one, other, fmod=1)
        return ops.Sub(one, ops.Mul(ops.Div(one, other), other))

    def remainder(one: Any, other: Any) -> Any:
        # torch's translation multiplies a rounded quotient
        if not one.dtype.is_floating_point():
            return (
                core.aten_remainder(one, other) if hasattr(other, "dtype") else core.aten_remainder_scalar(one, other)
            )
        rest, zero = ops.Mod(one, other, fmod=1), common.constant(0.0, dtype=one.dtype)
        below = ops.And(ops.Not(ops.Equal(rest, zero)), ops.Xor(ops.Less(rest, zero), ops.Less(other, zero)))
        return ops.Where(below, ops.Add(rest, other), rest)

    def log_sigmoid(inp: Any) -> Any:
        # torch's translation is -infinity where the sigmoid rounds to 0
        if inp.dtype != DOUBLE:
            return ops.Neg(ops.Softplus(ops.Neg(inp)))  # onnxruntime has no such kernel for float64
        one, zero = (ops.CastLike(ops.Constant(value_float=number), inp) for number in (1.0, 0.0))
        return ops.Sub(ops.Min(inp, zero), ops.Log(ops.Add(one, ops.Exp(ops.Neg(ops.Abs(inp))))))

    def logarithm_of_sum(base: float) -> Callable[..., Any]:
        return lambda one, other: logaddexp(one, other, one.dtype, base)

    def without_nan(choose: Callable[..., Any], of_flags: Callable[..., Any]) -> Callable[..., Any]:
        def call(one: Any, other: Any) -> Any:
            if not one.dtype.is_floating_point():
                return (of_flags if one.dtype == BOOL else choose)(one, other)
            return ops.Where(ops.IsNaN(one), other, ops.Where(ops.IsNaN(other), one, choose(one, other)))

        return call

    def copysign(one: Any, other: Any) -> Any:
        size = ops.Abs(one)
        if isinstance(other, (int, float)):
            return ops.Neg(size) if math.copysign(1.0, other) < 0 else size
        return ops.Where(signbit(other), ops.Neg(size), size)

    def hypot(one: Any, other: Any) -> Any:
        sizes = ops.Abs(one), ops.Abs(other)
        larger, smaller = ops.Max(*sizes), ops.Min(*sizes)
        unit = common.constant(1.0, dtype=one.dtype)
        ratio = ops.Where(ops.Equal(smaller, larger), unit, ops.Div(smaller, larger))  # two zeros or infinities too
        return ops.Mul(larger, ops.Sqrt(ops.Add(unit, ops.Mul(ratio, ratio))))

    def sigmoid(inp: Any) -> Any:
        dtype = DOUBLE if inp.dtype == DOUBLE else FLOAT  # in half precision, Exp would overflow below -11
        one = common.constant(1.0, dtype=dtype)
        wide = inp if inp.dtype == dtype else ops.Cast(inp, to=dtype)
        found = ops.Div(one, ops.Add(one, ops.Exp(ops.Neg(wide))))
        return found if inp.dtype == dtype else ops.Cast(found, to=inp.dtype)

    def sign(inp: Any) -> Any:
        if not inp.dtype.is_floating_point():
            return core.aten_sign(inp)
        return ops.Where(ops.IsNaN(inp), common.constant(0.0, dtype=inp.dtype), ops.Sign(inp))  # as torch has it

    def heaviside(inp: Any, values: Any) -> Any:
        zero = common.constant(0, dtype=inp.dtype)
        return ops.Where(ops.Equal(inp, zero), values, ops.Cast(ops.Greater(inp, zero), to=inp.dtype))

    def xlogy(one: Any, other: Any) -> Any:
        usual = special.aten_special_xlogy(one, other)
        return ops.Where(ops.IsNaN(other), other, usual) if other.dtype.is_floating_point() else usual

    def logit(inp: Any, eps: float | None = None) -> Any:
        usual = core.aten_logit(inp, eps)
        return usual if eps is None else ops.Where(ops.IsNaN(inp), inp, usual)

    aten: Any = torch.ops.aten
    return {
        exact_sigmoid: sigmoid,
        aten.sign.default: sign,
        aten.heaviside.default: heaviside,
        aten.xlogy.Tensor: xlogy,
        aten.logit.default: logit,
        aten.div.Tensor_mode: div_mode,
        aten.div.Scalar_mode: div_mode,
        aten.floor_divide.default: floor_divide,
        aten.fmod.Tensor: fmod,
        aten.fmod.Scalar: fmod,
        aten.remainder.Tensor: remainder,
        aten.remainder.Scalar: remainder,
        aten.atan2.default: atan2,
        aten.log_sigmoid.default: log_sigmoid,
        aten.signbit.default: signbit,  # torch's translation overlooks -0.0
        torch.ops.prims.signbit.default: signbit,
        aten.logaddexp.default: logarithm_of_sum(math.e),
        aten.logaddexp2.default: logarithm_of_sum(2.0),
        aten.fmax.default: without_nan(ops.Max, ops.Or),
        aten.fmin.default: without_nan(ops.Min, ops.And),
        aten.copysign.Tensor: copysign,
        aten.copysign.Scalar: copysign,
        aten.hypot.default: hypot,
    }


def logaddexp(one: Any, other: Any, dtype: Any, base: float = math.e) -> Any:
    """Return the logarithm of a sum of powers; torch's translation overflows, as exp(89) is infinite in float32."""
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common

    from exporter.targets import _onnx_limits

    ops: Any = opset18
    larger, smaller = ops.Max(one, other), ops.Min(one, other)
    zero, factor = (common.constant(number, dtype=dtype) for number in (0.0, math.log(base)))
    apart = ops.Where(ops.Equal(one, other), zero, ops.Sub(smaller, larger))  # infinities too
    rest = _onnx_limits.log1p(ops.Exp(ops.Mul(apart, factor)), dtype)
    return ops.Add(larger, ops.Div(rest, factor))


def _are_integers(one: Any, other: Any) -> bool:
    """Return whether a tensor and a tensor or number are integers."""
    return one.dtype.is_integer() and (isinstance(other, int) or (hasattr(other, "dtype") and other.dtype == one.dtype))


def _floored(one: Any, other: Any) -> Any:
    """Divide integers, rounding towards minus infinity."""
    from onnxscript import opset18

    ops: Any = opset18
    whole = ops.Div(one, other)
    zero, lower = (ops.CastLike(ops.Constant(value_int=number), whole) for number in (0, 1))
    rest = ops.Sub(one, ops.Mul(whole, other))
    below = ops.And(ops.Not(ops.Equal(rest, zero)), ops.Xor(ops.Less(rest, zero), ops.Less(other, zero)))
    return ops.Where(below, ops.Sub(whole, lower), whole)
