"""Translations to ONNX of operators on booleans and integers for which onnxruntime has no kernel.

It shifts unsigned integers only, selects no booleans and no 16-bit integers (Where), and negates no unsigned integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

INT8, INT16, INT32, INT64, BOOL, UINT64 = 3, 5, 6, 7, 9, 13  # ONNX's numbers of data types
WIDEST = 64  # bits


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common, core

    ops: Any = opset18

    def number(value: int) -> Any:
        return common.constant(value, dtype=INT64)

    def where(condition: Any, one: Any, other: Any) -> Any:
        kinds = {BOOL if isinstance(given, bool) else getattr(given, "dtype", None) for given in (one, other)}
        if kinds == {BOOL}:
            return _either(condition, one, other)
        if INT16 not in kinds:
            return core.aten_where(condition, one, other)
        wide = (given if isinstance(given, int) else ops.Cast(given, to=INT32) for given in (one, other))
        return ops.Cast(core.aten_where(condition, *wide), to=INT16)

    def masked_fill(inp: Any, mask: Any, value: Any) -> Any:
        if inp.dtype not in (BOOL, INT16):
            return core.aten_masked_fill(inp, mask, value)
        if inp.dtype == INT16:
            return ops.Cast(core.aten_masked_fill(ops.Cast(inp, to=INT32), mask, value), to=INT16)
        return _either(mask, ops.Cast(value, to=BOOL) if hasattr(value, "dtype") else bool(value), inp)

    def wide(given: Any, dtype: Any) -> Any:
        """Return an operand of a shift as int64, with its value in `dtype`, the other operand's if it is a number."""
        if hasattr(given, "dtype"):
            return given if given.dtype == INT64 else ops.Cast(given, to=INT64)
        if dtype == INT64:
            return number(given)
        return ops.Cast(ops.Cast(number(given), to=dtype), to=INT64)

    def shift(to: Callable[..., Any]) -> Callable[..., Any]:
        def call(one: Any, other: Any) -> Any:
            dtype = one.dtype if hasattr(one, "dtype") else other.dtype
            count = wide(other, dtype)
            possible = ops.And(ops.GreaterOrEqual(count, number(0)), ops.Less(count, number(WIDEST)))
            found = to(wide(one, dtype), count, possible)
            return found if dtype == INT64 else ops.Cast(found, to=dtype)

        return call

    def shifted(bits: Any, count: Any, direction: str) -> Any:
        found = ops.BitShift(ops.Cast(bits, to=UINT64), ops.Cast(count, to=UINT64), direction=direction)
        return ops.Cast(found, to=INT64)

    def left(bits: Any, count: Any, possible: Any) -> Any:
        return ops.Where(possible, shifted(bits, ops.Where(possible, count, number(0)), "LEFT"), number(0))

    def right(bits: Any, count: Any, possible: Any) -> Any:
        negative = ops.Less(bits, number(0))
        positive = ops.Where(negative, ops.BitwiseNot(bits), bits)  # so that zeros are what is shifted in
        found = shifted(positive, ops.Where(possible, count, number(WIDEST - 1)), "RIGHT")
        return ops.Where(negative, ops.BitwiseNot(found), found)

    def neg(inp: Any) -> Any:
        signed = inp.dtype.is_floating_point() or inp.dtype.is_signed()
        return ops.Neg(inp) if signed else ops.Sub(common.constant(0, dtype=inp.dtype), inp)

    aten: Any = torch.ops.aten
    lefts = (aten.__lshift__, aten.bitwise_left_shift)
    rights = (aten.__rshift__, aten.bitwise_right_shift)
    overloads = [(getattr(one, name), to) for ones, to in ((lefts, left), (rights, right)) for one in ones
                 for name in one.overloads() if not name.endswith("out")]  # fmt: skip
    return {
        **{overload: shift(to) for overload, to in overloads},
        **{getattr(aten.where, name): where for name in ("self", "Scalar", "ScalarSelf", "ScalarOther")},
        aten.masked_fill.Scalar: masked_fill,
        aten.masked_fill.Tensor: masked_fill,
        aten.neg.default: neg,
    }


def _either(condition: Any, one: Any, other: Any) -> Any:
    """Return one of two booleans, tensors or Python's, for each element of the condition."""
    from onnxscript import opset18

    ops: Any = opset18
    if isinstance(one, bool) and isinstance(other, bool):
        if one == other:
            return ops.Or(condition, ops.Not(condition)) if one else ops.And(condition, ops.Not(condition))
        return ops.Identity(condition) if one else ops.Not(condition)
    if isinstance(one, bool):
        return ops.Or(condition, other) if one else ops.And(ops.Not(condition), other)
    if isinstance(other, bool):
        return ops.Or(ops.Not(condition), one) if other else ops.And(condition, one)
    return ops.Or(ops.And(condition, one), ops.And(ops.Not(condition), other))
