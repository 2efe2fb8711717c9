"""Numbers that a program computes from sizes, as Python computes them; torch.onnx.export uses float32.

With float32, `int(0.7 * length)` is 63 instead of 62 for a length of 90. torch.onnx.export also divides negative
integers towards zero, which makes 23 of `-(-length // 3)` for a length of 70, and Python 24.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

DOUBLE, INT64, FLOAT = 11, 7, 1  # ONNX's numbers of data types
_ARITHMETIC: dict[Callable[..., Any], str] = {
    operator.add: "Add",
    operator.sub: "Sub",
    operator.mul: "Mul",
    operator.truediv: "Div",
    operator.pow: "Pow",
    operator.neg: "Neg",
    abs: "Abs",
    torch.sym_float: "Identity",
    torch.sym_max: "Max",
    torch.sym_min: "Min",
}
_WHOLE: dict[Callable[..., Any], str] = {math.floor: "Floor", math.ceil: "Ceil", round: "Round", math.trunc: "Identity"}
ARANGES = (torch.ops.aten.arange.default, torch.ops.aten.arange.start, torch.ops.aten.arange.start_step)


def _again(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of its own that does the same."""

    def call(*numbers: Any) -> Any:
        return target(*numbers)

    call.__name__ = call.__qualname__ = f"exact_{target.__name__}"
    return call


EXACT = {target: _again(target) for target in (*_ARITHMETIC, *_WHOLE, operator.mod)}


def single(number: Any) -> Any:
    """Stand for the conversion to float32 where an operator of tensors takes the number."""
    return number


def divided(one: Any, other: Any) -> Any:
    """Stand for the floor division of integers that are known not to be negative, which ONNX's Div computes."""
    return one // other


def rounded_to_digits(number: Any, digits: int) -> Any:
    """Stand for what has no translation, so that torch's error has this name."""
    return round(number, digits)


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each of these functions, as `torch.onnx.export` takes them."""
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import core

    ops: Any = opset18

    def double(number: Any) -> Any:
        if isinstance(number, (int, float)):
            return ops.Constant(value=_scalar(float(number)))
        return number if number.dtype == DOUBLE else ops.Cast(number, to=DOUBLE)

    def arithmetic(name: str) -> Callable[..., Any]:
        return lambda *numbers: getattr(ops, name)(*map(double, numbers))

    def whole(name: str) -> Callable[..., Any]:
        return lambda number: ops.Cast(getattr(ops, name)(double(number)), to=INT64)

    def mod(one: Any, other: Any) -> Any:
        one, other = double(one), double(other)
        rest, zero = ops.Mod(one, other, fmod=1), double(0.0)
        outside = ops.And(ops.Not(ops.Equal(rest, zero)), ops.Xor(ops.Less(rest, zero), ops.Less(other, zero)))
        return ops.Where(outside, ops.Add(rest, other), rest)

    def integer(number: Any) -> Any:
        return ops.Constant(value_int=number) if isinstance(number, int) else number

    def floordiv(one: Any, other: Any) -> Any:
        one, other = integer(one), integer(other)
        return ops.Div(ops.Sub(one, ops.Mod(one, other)), other)  # the remainder has the divisor's sign

    def is_exact(*numbers: Any) -> bool:
        return any(hasattr(one, "dtype") and one.dtype == DOUBLE for one in numbers)

    def arange(start: Any, end: Any, step: Any = 1, dtype: int = -1, *options: Any, **named: Any) -> Any:
        if not is_exact(start, end, step):
            return core.aten_arange_start_step(start, end, step, dtype)
        return ops.Cast(ops.Range(*map(double, (start, end, step))), to=FLOAT if dtype == -1 else dtype)

    def arange_end(end: Any, dtype: int = -1, *options: Any, **named: Any) -> Any:
        return arange(0, end, 1, dtype) if is_exact(end) else core.aten_arange(end, dtype)

    def arange_start(start: Any, end: Any, dtype: int = -1, *options: Any, **named: Any) -> Any:
        return arange(start, end, 1, dtype) if is_exact(start, end) else core.aten_arange_start(start, end, dtype)

    return {
        torch.ops.aten.arange.default: arange_end,
        torch.ops.aten.arange.start: arange_start,
        torch.ops.aten.arange.start_step: arange,
        **{EXACT[target]: arithmetic(name) for target, name in _ARITHMETIC.items()},
        **{EXACT[target]: whole(name) for target, name in _WHOLE.items()},
        EXACT[operator.mod]: mod,
        operator.floordiv: floordiv,
        divided: lambda one, other: ops.Div(integer(one), integer(other)),
        single: lambda number: ops.Cast(number, to=FLOAT),
    }


def _scalar(number: float) -> Any:
    import numpy as np
    import onnx

    return onnx.numpy_helper.from_array(np.array(number))


def _scalar_of(dtype: torch.dtype) -> torch.Tensor:
    """Return what torch.onnx.export needs to know of a number: its dtype, which it takes for float32 otherwise."""
    return torch.empty((), dtype=dtype, device="meta")


def exact(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Let a program compute numbers with `EXACT` and `divided`, and return it."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            _rewrite(module.graph)
    return program


def _is_not_negative(number: Any) -> bool:
    """Return whether that is known of a number, at every size that the program takes."""
    value = number.meta.get("val") if isinstance(number, fx.Node) else number
    return isinstance(value, int | torch.SymInt) and statically_known_true(value >= 0)


def _rewrite(graph: fx.Graph) -> None:
    made: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target is operator.floordiv and all(map(_is_not_negative, node.args)):
            node.target = divided
        numbers = [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.SymFloat)]
        is_number = isinstance(node.meta.get("val"), torch.SymFloat)
        given = tuple(one for one in node.args if one is not None)  # Python's round has no digits
        if node.target is round and len(given) > 1:
            node.target = rounded_to_digits
        if node.target in EXACT and (numbers or is_number):
            with graph.inserting_before(node):
                args = fx.map_arg(given, lambda one: made.get(one, one))
                made[node] = graph.call_function(EXACT[node.target], args)
            made[node].meta = {**node.meta, **({"val": _scalar_of(torch.float64)} if is_number else {})}
            if not is_number:
                node.replace_all_uses_with(made[node])
            continue
        for number in numbers:
            if number in made and node.target in ARANGES:
                node.replace_input_with(number, made[number])
            elif number in made:
                with graph.inserting_before(node):
                    rounded = graph.call_function(single, (made[number],))
                rounded.meta = {**number.meta, "val": _scalar_of(torch.float32)}
                node.replace_input_with(number, rounded)
    for node in reversed(made):
        if not node.users:
            graph.erase_node(node)
