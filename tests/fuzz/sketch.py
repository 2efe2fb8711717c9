"""A forward under construction: lines are kept only if eager runs them at every size that the module promises."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

Choice = TypeVar("Choice")

LARGEST = 1e3  # above it, float32 rounding exceeds the tolerance
MOST_ELEMENTS = 20_000
NAMES = {"torch": torch, "F": F, "nn": nn, "math": math}


class DoesNotRun(Exception):
    """The lines raise at some size, or return values that a test cannot judge."""


class Choices:
    """Choices read from bytes, two per choice; past the end, always the first. Fewer, smaller bytes are simpler."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def __call__(self, *choices: Choice) -> Choice:
        """Return one of the options."""
        number = next(self._bytes, 0) * 256 + next(self._bytes, 0)
        return choices[number % len(choices)]


@dataclass(frozen=True)
class Value:
    """A local variable of forward, with its value at each size at which the sketch is tried."""

    name: str
    held: tuple[Any, ...]

    def __str__(self) -> str:
        """Return it as an expression."""
        return self.name

    @property
    def tensor(self) -> bool:
        """Return whether it is a tensor, not a number."""
        return isinstance(self.held[0], torch.Tensor)

    @property
    def dtype(self) -> Any:
        """Return the torch dtype, or the Python type of a number."""
        return self.held[0].dtype if self.tensor else type(self.held[0])

    @property
    def floating(self) -> bool:
        """Return whether it is a floating tensor."""
        return self.tensor and self.held[0].is_floating_point()

    @property
    def integral(self) -> bool:
        """Return whether it is a tensor of int64."""
        return self.tensor and self.held[0].dtype == torch.int64

    @property
    def boolean(self) -> bool:
        """Return whether it is a tensor of bool."""
        return self.tensor and self.held[0].dtype == torch.bool

    @property
    def rank(self) -> int:
        """Return the number of dimensions; -1 for a number."""
        return self.held[0].dim() if self.tensor else -1

    def size(self, axis: int) -> int:
        """Return the size of a static dimension, or its size at the first try."""
        return int(self.held[0].shape[axis])

    def static(self, axis: int) -> bool:
        """Return whether a dimension is static."""
        return self.tensor and -self.rank <= axis < self.rank and len({t.shape[axis] for t in self.held}) == 1

    def distinct(self, axis: int) -> bool:
        """Return whether no two values along a dimension are close, so that their order is certain."""
        gaps = [t.double().sort(axis).values.diff(dim=axis) for t in self.held]
        return all(gap.numel() == 0 or bool(gap.min() > 1e-3) for gap in gaps)


@dataclass
class Sketch:
    """The drawn lines of `__init__` and `forward` so far, and the values of `forward`.

    `arguments` returns new arguments of forward, for each size that is tried.
    """

    choose: Choices
    dtype: torch.dtype
    arguments: Callable[[], Sequence[dict[str, Any]]]
    layers: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    _pending: list[str] = field(default_factory=list)
    _count: int = 0

    def new(self, prefix: str = "v") -> str:
        """Return an unused name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def pick(self, fits: Callable[[Value], bool]) -> Value:
        """Return one of the values that fit, half of the time the latest. Raises DoesNotRun if none fits."""
        fitting = [value for value in reversed(self.values) if fits(value)]
        if not fitting:
            raise DoesNotRun
        return self.choose(*fitting[:1] * len(fitting), *fitting[1:])

    def unused(self) -> list[Value]:
        """Return the values that no later line uses, latest first."""
        made = [value for value in self.values if re.fullmatch(r"[vnhc]\d+", value.name)]
        text = "\n".join(self.lines)
        return [value for value in reversed(made) if len(re.findall(rf"\b{value.name}\b", text)) == 1]

    def owned(self, value: Value) -> bool:
        """Return whether it can be changed in place without changing an argument."""
        given = [v for v in self.values if v.tensor and v.name.partition("[")[0] in self.arguments()[0]]
        return all(
            t.untyped_storage().data_ptr() != v.held[i].untyped_storage().data_ptr()
            for v in given
            for i, t in enumerate(value.held)
        )

    def axis(self, value: Value) -> int:
        """Return one of its dimensions. Raises DoesNotRun if it has none."""
        if value.rank < 1:
            raise DoesNotRun
        return self.choose(*range(value.rank - 1, -1, -1), *range(-value.rank, 0))

    def layer(self, expression: str, prefix: str = "layer") -> str:
        """Return `self.NAME` for a new attribute of the module, which is added with the lines that use it."""
        name = f"self.{self.new(prefix)}"
        self._pending.append(f"{name} = {expression}")
        return name

    def buffer(self, expression: str) -> str:
        """Return `self.NAME` for a new buffer."""
        name = self.new("buffer")
        self._pending.append(f'self.register_buffer("{name}", {expression})')
        return f"self.{name}"

    def attribute(self, name: str, line: str) -> str:
        """Return `self.NAME` for the result of a line of `__init__`."""
        self._pending.append(line)
        return f"self.{name}"

    def let(self, expression: str) -> None:
        """Add `NAME = expression`."""
        self.add([f"{self.new()} = {expression}"])

    def add(self, lines: Sequence[str]) -> None:
        """Add lines to forward. Raises DoesNotRun, without adding them, if eager fails at some size."""
        layers, self._pending = self.layers + self._pending, []
        body = [*self.lines, *lines]
        values = _sound([_run(layers, body, self.dtype, given) for given in self.arguments()])
        self.layers, self.lines, self.values = layers, body, values

    def forget(self) -> None:
        """Drop layers that no line uses."""
        self._pending = []


def _run(layers: Sequence[str], lines: Sequence[str], dtype: torch.dtype, given: dict[str, Any]) -> dict[str, Any]:
    """Return the variables after the lines. Raises DoesNotRun if the lines raise."""
    module = nn.Module()
    scope = {**NAMES, **given, "self": module}
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            exec("\n".join(layers), scope)
            module.to(dtype).eval()
            exec("\n".join(lines), scope)
    except Exception as error:  # a line that does not fit the values may raise anything
        raise DoesNotRun from error
    return {name: value for name, value in scope.items() if name not in NAMES and name not in ("self", "__builtins__")}


def _sound(scopes: Sequence[dict[str, Any]]) -> list[Value]:
    """Return the variables that are consistent at all sizes. Raises DoesNotRun for values that a test cannot judge."""
    values = []
    for name in [name for name in scopes[0] if all(name in scope for scope in scopes)]:
        for path, held in _leaves(name, [scope[name] for scope in scopes]):
            if not _alike(held):
                raise DoesNotRun
            values.append(Value(path, held))
    return values


def _leaves(name: str, held: Sequence[Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Yield a variable, or the tensors in a structure, with their expressions."""
    first = held[0]
    if isinstance(first, (list, tuple)) and len({len(one) for one in held}) > 1:
        return []
    if isinstance(first, dict):
        parts = [(f'{name}["{key}"]', [one[key] for one in held]) for key in first]
    elif isinstance(first, (list, tuple)):
        parts = [(f"{name}[{i}]", [one[i] for one in held]) for i in range(len(first))]
    elif isinstance(first, (torch.Tensor, int, float)) and not isinstance(first, bool):
        return [(name, tuple(held))]
    else:
        return []
    return [leaf for path, part in parts for leaf in _leaves(path, part)]


def _alike(held: Sequence[Any]) -> bool:
    """Return whether rank and dtype are the same at all sizes, and the values are few, finite and moderate."""
    if len({type(one) for one in held}) > 1:
        return False
    if not isinstance(held[0], torch.Tensor):
        return all(abs(one) <= LARGEST for one in held)
    return len({(t.dim(), t.dtype) for t in held}) == 1 and all(
        0 < t.numel() <= MOST_ELEMENTS and bool(t.isfinite().all()) and float(t.double().abs().max()) <= LARGEST
        for t in held
    )
