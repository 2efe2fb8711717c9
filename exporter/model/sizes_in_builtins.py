"""Python's int, len and range as functions that keep a size of the input symbolic while torch.export captures a model.

`len(x)`, `int(size / window)` and `range(0, length, length)` fix the size, because Python itself requires a number
there. Their names are replaced in the modules whose lines fixed a size.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy import functions

CALLS = re.compile(r"\b(?:int|len|range)\(|\bint\b")
Names = dict[str, Any]  # the global names of a module


@contextlib.contextmanager
def kept(modules: Iterable[Names]) -> Iterator[None]:
    """Replace the functions in these modules within this context, except where a module defines the name itself."""
    with contextlib.ExitStack() as stack:
        for names in modules:
            own = {name: one for name, one in REPLACED.items() if names.get(name) in (None, getattr(builtins, name))}
            stack.enter_context(mock.patch.dict(names, own))
        yield


class _Int(type):
    """The type of `Int`: it converts as `int` does, and an instance of `int` is an instance of it."""

    def __call__(cls, value: Any = 0, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, torch.SymInt):
            return value
        return truncated(value) if isinstance(value, torch.SymFloat) else int(value, *args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, int)

    def __eq__(cls, other: object) -> bool:
        return other is int or other is Int

    def __hash__(cls) -> int:
        return hash(int)


class Int(metaclass=_Int):
    """`int`, except that a size of the input stays symbolic."""

    from_bytes = int.from_bytes


def length(value: Any) -> Any:
    """Return `len(value)`; of a tensor, its first size."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


def counted(*args: Any) -> Any:
    """Return `range(*args)`; with sizes of the input, a list if their number is always the same."""
    if not any(isinstance(one, torch.SymInt) for one in args):
        return range(*args)
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    count = _number((_expression(stop) - _expression(start)) / _expression(step))
    return range(*args) if count is None else [start + at * step for at in range(math.ceil(count))]


REPLACED: Names = {"int": Int, "len": length, "range": counted}


def truncated(value: torch.SymFloat) -> Any:
    """Return `int(value)` as a size. A quotient that is always whole becomes a size without a division.

    That may require that a size is divided without a remainder, as in `windows / (height * width / 8 / 8)`.
    """
    environment: Any = value.node.shape_env
    hint: Any = value.node.hint
    remainders: list[Any] = []

    def divided(one: Any, other: Any) -> Any:
        return one / other

    def floored(one: Any, other: Any) -> Any:
        remainders.append(functions.Mod(one, other))
        return one / other

    exact = _expression(value).replace(functions.ToFloat, lambda whole: whole)
    exact = exact.replace(functions.IntTrueDiv, divided).replace(functions.FloatTrueDiv, divided)
    exact = sympy.simplify(sympy.nsimplify(exact.replace(functions.FloorDiv, floored), rational=True))
    whole = exact.is_integer and exact.is_polynomial()
    if whole and all(environment.evaluate_expr(sympy.Eq(remainder, 0)) for remainder in remainders):
        return environment.create_symintnode(exact, hint=int(hint))
    return math.trunc(value)


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt | torch.SymFloat) else sympy.sympify(value)


def _number(quotient: Any) -> Any:
    """Return the value of an expression that does not depend on a size; None if it does."""
    simple = sympy.simplify(quotient)
    return simple if simple.is_number else None
