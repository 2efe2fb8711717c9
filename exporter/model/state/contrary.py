"""Numbers whose comparisons have the opposite result, to find out what a model would do at another value of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST = 64  # inverted comparisons of one number and what is computed from it; a loop must end
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_ARITHMETIC = tuple(
    f"__{prefix}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
    for prefix in ("", "r")
)


class _Budget:
    """How many comparisons may still be inverted, shared by a number and all that are computed from it."""

    def __init__(self) -> None:
        self.left = MOST

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0


def of(value: int | float, budget: _Budget | None = None) -> Any:
    """Return the number with inverted comparisons. Results of arithmetic are one larger, and inverted too."""
    made: Any = (_Float if isinstance(value, float) else _Int)(value)
    made.budget = budget or _Budget()
    return made


def _inverted(method: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Any, *others: Any) -> Any:
        result = method(self, *others)
        return result if result is NotImplemented else bool(result) != self.budget.spend()

    return compare


def _larger(method: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Any, *others: Any) -> Any:
        result = method(self, *others)
        return of(result + (self.budget.left > 0), self.budget) if type(result) in (int, float) else result

    return compute


def _contrary(kind: type) -> dict[str, Any]:
    methods: dict[str, Any] = {name: _inverted(getattr(kind, name)) for name in (*_COMPARISONS, "__bool__")}
    methods |= {name: _larger(getattr(kind, name)) for name in _ARITHMETIC if hasattr(kind, name)}
    return methods | {"__hash__": kind.__hash__}


_Int: Any = type("_Int", (int,), _contrary(int))
_Float: Any = type("_Float", (float,), _contrary(float))
