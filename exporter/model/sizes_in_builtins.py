"""Python's int, len and range as functions that keep a size of the input while a model is captured or traced.

`len(x)`, `int(size / window)` and `range(0, length, length)` fix the size, because Python itself requires a number
there. Their names are replaced in the modules whose lines fixed a size; `type(n) is int` is false in them meanwhile.
"""

from __future__ import annotations

import builtins
import contextlib
import linecache
import math
import re
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy import functions

from exporter.model import holders

CALLS = re.compile(r"(?<![.\w])(?:int|len|range)\(|\bmap\(int\b")
ROUNDING = re.compile(r"\b(?:ceil|floor|is_integer|round|trunc)\(")  # these keep symbolic numbers, but no tensors

Callers = dict[int, holders.Names]  # modules, by the identity of their names
Convert = Callable[[Any], Any]  # returns a size for a number that depends on sizes; None for other values


def note(callers: Callers, frame: FrameType, *calls: re.Pattern[str]) -> None:
    """Note the module of a frame whose line fixed a size, if the line has one of these calls."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if any(call.search(line) for call in calls):
        callers[id(frame.f_globals)] = frame.f_globals


def symbolic(value: Any) -> Any:
    """Return `int(value)` as a size if it is one of torch.export's symbolic numbers."""
    if isinstance(value, torch.SymInt):
        return value
    return truncated(value) if isinstance(value, torch.SymFloat) else None


@contextlib.contextmanager
def kept(modules: Iterable[holders.Names], convert: Convert = symbolic) -> Iterator[None]:
    """Replace the functions in these modules within this context, except where a module defines the name itself."""
    replaced = {"int": integers(convert), "len": length, "range": counted}
    with contextlib.ExitStack() as stack:
        for names in modules:
            own = {n: one for n, one in replaced.items() if n not in names or names[n] is getattr(builtins, n)}
            stack.enter_context(holders.named(names, own))
        yield


def integers(convert: Convert) -> type:
    """Return a type like `int`, of which numbers and sizes are instances, but which keeps what `convert` returns."""

    class Type(type):
        def __call__(cls, value: Any = 0, *args: Any, **kwargs: Any) -> Any:
            size = convert(value)
            return int(value, *args, **kwargs) if size is None else size

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, int) or (not isinstance(value, torch.SymFloat) and convert(value) is value)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, int)

        def __eq__(cls, other: object) -> bool:
            return other is int or other is cls

        def __hash__(cls) -> int:
            return hash(int)

    class Int(metaclass=Type):
        from_bytes = int.from_bytes

    return Int


def length(value: Any) -> Any:
    """Return `len(value)`; of a tensor, its first size."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


def counted(*args: Any) -> Any:
    """Return `range(*args)`; with sizes of the input, a list if its length does not depend on them."""
    if not any(isinstance(one, torch.SymInt) for one in args):
        return range(*args)
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1) if len(args) == 2 else args
    count = _number((_expression(stop) - _expression(start)) / _expression(step))
    return range(*args) if count is None else [start + at * step for at in range(math.ceil(count))]


def truncated(value: torch.SymFloat) -> Any:
    """Return `int(value)` as a size. A quotient that is always whole becomes a size without a division.

    That may require that a size is divided without a remainder, as in `windows / (height * width / 8 / 8)`.
    """
    environment: Any = value.node.shape_env
    hint: Any = value.node.hint
    if hint is None:  # it depends on values
        return math.trunc(value)
    hints = environment.backed_var_to_val if hasattr(environment, "backed_var_to_val") else environment.var_to_val
    for divides in (False, True):
        exact = Exact(divides)
        whole = exact.of(_expression(value))
        if whole is None or any(remainder.xreplace(hints) != 0 for remainder in exact.remainders):
            continue
        if whole.xreplace(hints) == math.trunc(hint):
            for remainder in exact.remainders:
                environment.evaluate_expr(sympy.Eq(remainder, 0))
            return environment.create_symintnode(whole, hint=math.trunc(hint))
    return math.trunc(value)


class Exact:
    """Finds an expression of whole numbers that equals one with divisions, if the latter is exact in float64.

    If `divides`, floor divisions count as exact too, which requires that the `remainders` are 0.
    """

    def __init__(self, divides: bool) -> None:
        self.divides = divides
        self.remainders: list[Any] = []

    def of(self, expression: Any) -> Any:
        """Return a polynomial with whole coefficients; None if the value may be fractional, or may be rounded."""
        found = self._exact(expression)
        return found if found is not None and _is_whole(found) else None

    def _exact(self, one: Any) -> Any:
        if isinstance(one, sympy.Float):
            fraction = sympy.Rational(*float(one).as_integer_ratio())
            return fraction if fraction.q <= SMALL and abs(fraction.p) <= SMALL else None
        if one.is_Integer or (one.is_Symbol and one.is_integer):
            return one
        if isinstance(one, (sympy.Add, sympy.Mul)) and any(isinstance(part, sympy.Float) for part in one.args):
            return None  # sympy may have merged numbers that Python rounds one after the other
        if isinstance(one, functions.FloorDiv) and self.divides:
            self.remainders.append(functions.Mod(*one.args))
            numerator, divisor = map(self._exact, one.args)
            return None if numerator is None or divisor is None else sympy.cancel(numerator / divisor)
        if not isinstance(one, (sympy.Add, sympy.Mul, functions.ToFloat, *DIVISIONS)):
            return one if one.is_integer else None
        parts = [self._exact(part) for part in one.args]
        if any(part is None for part in parts):
            return None
        if isinstance(one, functions.ToFloat):
            return parts[0]
        if not isinstance(one, DIVISIONS):
            return sympy.expand(one.func(*parts))
        quotient = sympy.cancel(parts[0] / parts[1])
        shifted = parts[1].is_Rational and _is_power(parts[1])
        return quotient if shifted or _is_whole(quotient) else None


DIVISIONS = (functions.IntTrueDiv, functions.FloatTrueDiv)
SMALL = 1 << 20  # a quotient by such a number, if it is whole, is exact in float64


def _is_whole(expression: Any) -> bool:
    """Return whether an expression is a polynomial in sizes with whole coefficients."""
    symbols = {part: sympy.Dummy(integer=True) for part in expression.atoms(sympy.Function) if part.is_integer}
    polynomial = sympy.expand(expression.xreplace(symbols))
    terms = polynomial.as_coefficients_dict()
    return bool(polynomial.is_polynomial()) and all(number.is_Integer for number in terms.values())


def _is_power(number: Any) -> bool:
    """Return whether a rational number is a power of two, by which a division is exact."""
    return all(part > 0 and part & (part - 1) == 0 for part in (int(number.p), int(number.q)))


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt | torch.SymFloat) else sympy.sympify(value)


def _number(quotient: Any) -> Any:
    """Return the value of an expression that does not depend on a size; None if it does."""
    simple = sympy.cancel(quotient)
    return simple if simple.is_number else None
