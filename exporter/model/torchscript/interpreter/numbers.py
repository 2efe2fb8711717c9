"""Zero-dimensional tensors with a value known to Python, which tracing creates for sizes, and their arithmetic.

torch.export cannot look into tensors; Python numbers may be symbolic, so sizes stay dynamic.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Handler = Callable[..., Any]


@dataclass(frozen=True)
class Number:
    """A zero-dimensional tensor whose value Python knows; tracing creates one for each size."""

    value: Any
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """Return the tensor that it stands for."""
        return torch.scalar_tensor(self.value, dtype=self.dtype)


@dataclass(frozen=True)
class Predicate:
    """A tensor's truth value, not yet evaluated, so that a branch on it can become torch.cond."""

    tensor: torch.Tensor

    def __bool__(self) -> bool:
        return bool(self.tensor)


def as_tensor(value: Any) -> Any:
    """Convert Numbers, alone or in a list, to tensors; return other values unchanged."""
    if isinstance(value, list):
        return [as_tensor(item) for item in value]
    return value.tensor() if isinstance(value, Number) else value


def as_truth(value: Any) -> torch.Tensor:
    """Return tensors unchanged; convert Predicates and plain booleans to boolean tensors."""
    if isinstance(value, Predicate):
        return value.tensor.reshape(()).to(torch.bool)
    tensor = as_tensor(value)
    return tensor if isinstance(tensor, torch.Tensor) else torch.scalar_tensor(tensor, dtype=torch.bool)


def as_output(value: Any) -> Any:
    """Convert Predicates and Numbers to tensors; return other values unchanged."""
    return as_truth(value) if isinstance(value, Predicate) else as_tensor(value)


def as_python(value: Any) -> Any:
    """Return a Number's value; return other values unchanged."""
    return value.value if isinstance(value, Number) else value


def number(value: Any) -> Any:
    """prim::NumToTensor. Complex numbers become tensors at once."""
    if isinstance(value, (bool, torch.SymBool)):
        return Number(value, torch.bool)
    if isinstance(value, (int, torch.SymInt)):
        return Number(value, torch.int64)
    if isinstance(value, (float, torch.SymFloat)):
        return Number(value, torch.float64)
    return torch.scalar_tensor(value)


def _arithmetic(function: Handler) -> Handler:
    """Wrap a function of numbers with torch's type promotion; trailing arguments are passed through."""

    def run(*values: Any) -> Number:
        plain = [as_python(value) for value in values]
        kinds = [v.dtype for v in values if isinstance(v, Number)]
        dtype = kinds[0] if len(kinds) == 1 else torch.promote_types(*kinds[:2])
        result = function(*plain)
        if isinstance(result, (bool, torch.SymBool)):
            return Number(result, torch.bool)
        if isinstance(result, (float, torch.SymFloat)) and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        if isinstance(result, float) and dtype == torch.float32:
            result = ctypes.c_float(result).value
        return Number(result, dtype)

    return run


def _divide(a: Any, b: Any, rounding: str | None = None) -> Any:
    if rounding == "floor":
        return a // b
    return a / b if rounding is None else to_int(a / b)


def to_int(value: Any) -> Any:
    """Return `int(value)`, for symbolic values too."""
    value = item(value)
    return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(value)


def to_float(value: Any) -> Any:
    """Return `float(value)`, for symbolic values too."""
    value = item(value)
    return torch.sym_float(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value)


def to_bool(value: Any) -> Any:
    """Return `bool(value)`, or a Predicate for a tensor under torch.export."""
    if isinstance(value, torch.Tensor):
        return Predicate(value) if torch.compiler.is_exporting() else bool(value)
    value = as_python(value)
    return value if isinstance(value, torch.SymBool) else bool(value)


def item(value: Any) -> Any:
    """Return the value of a zero-dimensional tensor or a Number."""
    value = as_python(value)
    return value.item() if isinstance(value, torch.Tensor) else value


NUMBERS: dict[str, Handler] = {
    f"aten::{name}": _arithmetic(function)
    for name, function in {
        "add": lambda a, b, alpha=1: a + b * alpha,
        "sub": lambda a, b, alpha=1: a - b * alpha,
        "rsub": lambda a, b, alpha=1: b - a * alpha,
        "mul": operator.mul,
        "div": _divide,
        "floor_divide": operator.floordiv,
        "remainder": operator.mod,
        "neg": operator.neg,
        "ceil": lambda a: a if isinstance(a, (int, torch.SymInt)) else torch.sym_float(math.ceil(a)),
        "floor": lambda a: a if isinstance(a, (int, torch.SymInt)) else torch.sym_float(math.floor(a)),
        **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    }.items()
} | {f"aten::{name}": lambda value, *_: value for name in ("detach", "clone", "contiguous")}
