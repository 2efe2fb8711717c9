"""Translations to ONNX of special functions, accurate to float32; ONNX has the error function alone.

Those of the gamma function compute in float64, because they subtract large numbers near their zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

FLOAT, DOUBLE = 1, 11  # ONNX's numbers of data types
# W. H. Press et al., Numerical Recipes in C, 2nd edition, section 6.2: erfccheb
ERFCX = (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587,
         -0.82215223, 0.17087277)  # fmt: skip
ERFC_ENDS = 11.0  # it is 0 in float32 from here on
# M. Giles, Approximating the erfinv function, 2010: near the middle, and near the ends
ERFINV = (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
          3.43273939e-07, 2.81022636e-08)  # fmt: skip
ERFINV_ENDS = (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
               0.000100950558, -0.000200214257)  # fmt: skip
# M. Abramowitz and I. A. Stegun, Handbook of Mathematical Functions, 6.1.41 and 6.3.18: the terms of 1/x, 1/x**3 …
LGAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
DIGAMMA = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)  # of 1/x**2, 1/x**4 …
SHIFT = 8  # where the terms above suffice


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common, special

    ops: Any = opset18

    def rounded(dtype: int, compute: Callable[[Any], Any]) -> Callable[..., Any]:
        """Return a function of a tensor that computes with another dtype."""

        def call(inp: Any) -> Any:
            if inp.dtype == dtype:
                return compute(inp)
            return ops.Cast(compute(ops.Cast(inp, to=dtype)), to=inp.dtype)

        return call

    def constant(dtype: int) -> Callable[[float], Any]:
        return lambda number: common.constant(number, dtype=dtype)

    def polynomial(x: Any, factors: Sequence[float], number: Callable[[float], Any]) -> Any:
        found = number(factors[-1])
        for factor in reversed(factors[:-1]):
            found = ops.Add(ops.Mul(found, x), number(factor))
        return found

    single, double = constant(FLOAT), constant(DOUBLE)

    def erfcx_of_positive(size: Any) -> Any:
        part = ops.Reciprocal(ops.Add(ops.Mul(size, single(0.5)), single(1.0)))
        return ops.Mul(part, ops.Exp(polynomial(part, ERFCX, single)))

    def exp_of_square(size: Any, sign: float) -> Any:
        """Return exp(±x²) of numbers below 16, with an exact square of their leading bits."""
        lead = ops.Div(ops.Floor(ops.Mul(size, single(16.0))), single(16.0))
        rest = ops.Mul(ops.Sub(size, lead), ops.Add(size, lead))
        return ops.Mul(*(ops.Exp(ops.Mul(square, single(sign))) for square in (ops.Mul(lead, lead), rest)))

    def limited(size: Any) -> Any:
        return ops.Where(ops.Greater(size, single(ERFC_ENDS)), single(ERFC_ENDS), size)

    def erfc_single(x: Any) -> Any:
        size = limited(ops.Abs(x))
        tail = ops.Mul(erfcx_of_positive(size), exp_of_square(size, -1.0))
        far = ops.Where(ops.Less(x, single(0.0)), ops.Sub(single(2.0), tail), tail)
        return ops.Where(ops.Less(size, single(0.5)), ops.Sub(single(1.0), ops.Erf(x)), far)

    def erfcx_single(x: Any) -> Any:
        size = ops.Abs(x)
        tail = erfcx_of_positive(size)
        power = ops.Mul(exp_of_square(limited(size), 1.0), single(2.0))
        return ops.Where(ops.Less(x, single(0.0)), ops.Sub(power, tail), tail)

    def unless_double(usual: Callable[..., Any], compute: Callable[[Any], Any]) -> Callable[..., Any]:
        ours = rounded(FLOAT, compute)
        return lambda inp: usual(inp) if inp.dtype == DOUBLE else ours(inp)

    def erfinv(x: Any) -> Any:
        one = double(1.0)
        depth = ops.Neg(ops.Log(ops.Mul(ops.Sub(one, x), ops.Add(one, x))))
        middle = polynomial(ops.Sub(depth, double(2.5)), ERFINV, double)
        end = polynomial(ops.Sub(ops.Sqrt(depth), double(3.0)), ERFINV_ENDS, double)
        found = ops.Mul(x, ops.Where(ops.Less(depth, double(5.0)), middle, end))
        return ops.Where(ops.Equal(ops.Abs(x), one), ops.Mul(x, double(math.inf)), found)

    def whole_and_rest(x: Any) -> tuple[Any, Any]:
        rest = ops.Sub(x, ops.Round(x))
        return ops.Equal(rest, double(0.0)), ops.Mul(rest, double(math.pi))

    def lgamma(x: Any) -> Any:
        negative, infinite = ops.Less(x, double(0.0)), ops.Equal(ops.Abs(x), double(math.inf))
        given = ops.Where(negative, ops.Sub(double(1.0), x), x)
        product = given
        for step in range(1, SHIFT):
            product = ops.Mul(product, ops.Add(given, double(float(step))))
        near = ops.Less(given, double(float(SHIFT)))
        moved = ops.Where(near, ops.Add(given, double(float(SHIFT))), given)
        inverse = ops.Reciprocal(moved)
        series = ops.Mul(inverse, polynomial(ops.Mul(inverse, inverse), LGAMMA, double))
        power = ops.Sub(ops.Mul(ops.Sub(moved, double(0.5)), ops.Log(moved)), moved)
        found = ops.Add(ops.Add(power, double(math.log(2 * math.pi) / 2)), series)
        found = ops.Sub(found, ops.Where(near, ops.Log(product), double(0.0)))
        _, angle = whole_and_rest(x)
        reflected = ops.Sub(ops.Log(ops.Div(double(math.pi), ops.Abs(ops.Sin(angle)))), found)
        return ops.Where(infinite, ops.Abs(x), ops.Where(negative, reflected, found))

    def digamma(x: Any) -> Any:
        negative = ops.Less(x, double(0.0))
        given = ops.Where(negative, ops.Sub(double(1.0), x), x)
        total = ops.Reciprocal(given)
        for step in range(1, SHIFT):
            total = ops.Add(total, ops.Reciprocal(ops.Add(given, double(float(step)))))
        moved = ops.Add(given, double(float(SHIFT)))
        inverse = ops.Reciprocal(moved)
        square = ops.Mul(inverse, inverse)
        series = ops.Sub(ops.Mul(square, polynomial(square, DIGAMMA, double)), ops.Mul(inverse, double(0.5)))
        found = ops.Sub(ops.Add(ops.Log(moved), series), total)
        whole, angle = whole_and_rest(x)
        cotangent = ops.Mul(ops.Div(ops.Cos(angle), ops.Sin(angle)), double(math.pi))
        reflected = ops.Where(whole, double(math.nan), ops.Sub(found, cotangent))
        return ops.Where(negative, reflected, found)

    aten, prims = torch.ops.aten, torch.ops.prims
    erfc = unless_double(special.aten_special_erfc, erfc_single)
    erfcx = unless_double(special.aten_special_erfcx, erfcx_single)
    return {
        aten.erfc.default: erfc,
        aten.special_erfc.default: erfc,
        aten.special_erfcx.default: erfcx,
        aten.erfinv.default: rounded(DOUBLE, erfinv),
        aten.special_erfinv.default: rounded(DOUBLE, erfinv),
        aten.lgamma.default: rounded(DOUBLE, lgamma),
        prims.lgamma.default: rounded(DOUBLE, lgamma),
        aten.digamma.default: rounded(DOUBLE, digamma),
        prims.digamma.default: rounded(DOUBLE, digamma),
        prims.erf_inv.default: rounded(DOUBLE, erfinv),
    }
