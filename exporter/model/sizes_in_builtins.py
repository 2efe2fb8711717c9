"""Python's float, int, len and range as functions that keep a size of the input while a model is captured or traced.

`len(x)`, `int(size / window)` and `range(0, length, length)` fix the size, because Python itself requires a number
there. Their names are replaced in the modules whose lines fixed a size; meanwhile `type(n) is int` is false in them,
and `x.to(float)` fails, so that the sizes stay fixed.
`x.shape.numel()` fixes it too, so the shapes that these modules read count their elements themselves.
"""

from __future__ import annotations

import builtins
import contextlib
import linecache
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any
from unittest import mock

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy import functions

from exporter.model import holders

CALLS = re.compile(r"(?<![.\w])(?:float|int|len|range)\(|\bmap\((?:float|int)\b|\.numel\(\)")
EXTREMES = re.compile(r"(?<![.\w])(?:max|min)\(")  # torch.export replaces them itself
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


def fraction(value: Any) -> Any:
    """Return `float(value)` as a symbolic number if it is one of torch.export's."""
    return torch.sym_float(value) if isinstance(value, torch.SymInt | torch.SymFloat) else None


@contextlib.contextmanager
def kept(
    modules: Iterable[holders.Names], whole: Convert = symbolic, fractional: Convert = fraction, **others: Any
) -> Iterator[None]:
    """Replace the functions in these modules within this context, except where a module defines the name itself.

    `whole` and `fractional` return what `int` and `float` return for a size; `others` are further functions by name.
    """
    modules = list(modules)
    converting = {"float": numbers(float, fractional), "int": numbers(int, whole)}
    replaced = {**converting, "len": length, "range": counted, **others}
    with contextlib.ExitStack() as stack:
        for names in modules:
            own = {n: one for n, one in replaced.items() if n not in names or names[n] is getattr(builtins, n)}
            stack.enter_context(holders.named(names, own))
        if modules:
            stack.enter_context(_counting({id(names) for names in modules}))
        yield


def numbers(kind: type, convert: Convert) -> type:
    """Return a type like int or float, of which sizes are instances too, but which keeps what `convert` returns."""

    class Type(type):
        def __call__(cls, value: Any = 0, *args: Any, **kwargs: Any) -> Any:
            size = convert(value)
            return kind(value, *args, **kwargs) if size is None else size

        def __instancecheck__(cls, value: Any) -> bool:
            if isinstance(value, kind) or value is None:
                return value is not None
            convertible = kind is float or not isinstance(value, torch.SymFloat)
            return convertible and convert(value) is value

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, kind)

        def __eq__(cls, other: object) -> bool:
            return other is kind or other is cls

        def __hash__(cls) -> int:
            return hash(kind)

        def __getattr__(cls, name: str) -> Any:
            return getattr(kind, name)

    return Type(kind.__name__, (), {})


class Sizes(tuple[Any, ...]):
    """A shape that counts the elements of its tensor without fixing sizes, which torch.Size cannot."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        """Return a size, or several as a shape."""
        found = super().__getitem__(index)
        return Sizes(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        """Return a longer shape."""
        return Sizes(super().__add__(tuple(other)))

    def numel(self) -> Any:
        """Return the number of elements."""
        return math.prod(self)


@contextlib.contextmanager
def _counting(modules: set[int]) -> Iterator[None]:
    """Let the shapes that these modules read count elements."""
    shape, size = torch.Tensor.shape, torch.Tensor.size

    def read(tensor: torch.Tensor) -> Any:
        found: Any = shape.__get__(tensor)  # type: ignore[attr-defined]
        return Sizes(found) if id(sys._getframe(1).f_globals) in modules else found

    def sizes(tensor: torch.Tensor, dim: Any = None) -> Any:
        if dim is not None:
            return size(tensor, dim)
        return Sizes(size(tensor)) if id(sys._getframe(1).f_globals) in modules else size(tensor)

    with (
        mock.patch.object(torch.Tensor, "shape", property(read)),
        mock.patch.object(torch.Tensor, "size", sizes),
    ):
        yield


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
    known = hints(environment)
    for divides in (False, True):
        exact = Exact(divides)
        whole = exact.of(_expression(value))
        if whole is None or any(remainder.xreplace(known) != 0 for remainder in exact.remainders):
            continue
        if whole.xreplace(known) == math.trunc(hint):
            for remainder in exact.remainders:
                environment.evaluate_expr(sympy.Eq(remainder, 0))
            return environment.create_symintnode(whole, hint=math.trunc(hint))
    return math.trunc(value)


def hints(environment: Any) -> Any:
    """Return the example's sizes by symbol; torch renamed the attribute that has them."""
    return environment.backed_var_to_val if hasattr(environment, "backed_var_to_val") else environment.var_to_val


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
