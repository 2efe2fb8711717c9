"""A forward in the making: lines are kept only if eager runs them at every size that the module promises to take."""

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

LARGEST = 1e3  # beyond it float32 rounds more than the tolerance forgives
MOST_ELEMENTS = 20_000
NAMES = {"torch": torch, "F": F, "nn": nn, "math": math}


class DoesNotRun(Exception):
    """The lines raise somewhere, or give what no test could judge."""


class Choices:
    """Choices read from bytes, two a choice; past their end always the first. Fewer and smaller bytes are simpler."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def __call__(self, *choices: Choice) -> Choice:
        """One of them."""
        number = next(self._bytes, 0) * 256 + next(self._bytes, 0)
        return choices[number % len(choices)]


@dataclass(frozen=True)
class Value:
    """A local variable of forward, with what it holds at each of the sizes that the sketch is tried at."""

    name: str
    held: tuple[Any, ...]

    def __str__(self) -> str:
        """As an expression."""
        return self.name

    @property
    def tensor(self) -> bool:
        """Whether it is a tensor, not a number."""
        return isinstance(self.held[0], torch.Tensor)

    @property
    def dtype(self) -> Any:
        """torch's, or the Python type of a number."""
        return self.held[0].dtype if self.tensor else type(self.held[0])

    @property
    def floating(self) -> bool:
        """Whether it is a floating tensor."""
        return self.tensor and self.held[0].is_floating_point()

    @property
    def integral(self) -> bool:
        """Whether it is a tensor of int64."""
        return self.tensor and self.held[0].dtype == torch.int64

    @property
    def boolean(self) -> bool:
        """Whether it is a tensor of bool."""
        return self.tensor and self.held[0].dtype == torch.bool

    @property
    def rank(self) -> int:
        """Number of dimensions; -1 for a number."""
        return self.held[0].dim() if self.tensor else -1

    def size(self, axis: int) -> int:
        """The size of a dimension that is the same at all sizes, or of the first try."""
        return int(self.held[0].shape[axis])

    def static(self, axis: int) -> bool:
        """Whether a dimension never moves."""
        return self.tensor and -self.rank <= axis < self.rank and len({t.shape[axis] for t in self.held}) == 1

    def distinct(self, axis: int) -> bool:
        """Whether no two values along a dimension are close to each other: their order is sure."""
        gaps = [t.double().sort(axis).values.diff(dim=axis) for t in self.held]
        return all(gap.numel() == 0 or bool(gap.min() > 1e-3) for gap in gaps)


@dataclass
class Sketch:
    """What is drawn so far: lines of `__init__` and of `forward`, and the values that `forward` has.

    `arguments` gives the arguments of forward at each size that is tried, new ones at every call.
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
        """A name that is not taken."""
        self._count += 1
        return f"{prefix}{self._count}"

    def pick(self, fits: Callable[[Value], bool]) -> Value:
        """One of the values that fit, half of the time the latest. DoesNotRun when none does."""
        fitting = [value for value in reversed(self.values) if fits(value)]
        if not fitting:
            raise DoesNotRun
        return self.choose(*fitting[:1] * len(fitting), *fitting[1:])

    def unused(self) -> list[Value]:
        """The values, latest first, that some line made and no later line uses."""
        made = [value for value in self.values if re.fullmatch(r"[vnhc]\d+", value.name)]
        text = "\n".join(self.lines)
        return [value for value in reversed(made) if len(re.findall(rf"\b{value.name}\b", text)) == 1]

    def owned(self, value: Value) -> bool:
        """Whether changing it in place changes no argument."""
        given = [v for v in self.values if v.tensor and v.name.partition("[")[0] in self.arguments()[0]]
        return all(
            t.untyped_storage().data_ptr() != v.held[i].untyped_storage().data_ptr()
            for v in given
            for i, t in enumerate(value.held)
        )

    def axis(self, value: Value) -> int:
        """One of its dimensions. DoesNotRun when it has none."""
        if value.rank < 1:
            raise DoesNotRun
        return self.choose(*range(value.rank - 1, -1, -1), *range(-value.rank, 0))

    def layer(self, expression: str, prefix: str = "layer") -> str:
        """`self.NAME` for a new attribute of the module; it is there once the lines that use it are added."""
        name = f"self.{self.new(prefix)}"
        self._pending.append(f"{name} = {expression}")
        return name

    def buffer(self, expression: str) -> str:
        """`self.NAME` for a new buffer."""
        name = self.new("buffer")
        self._pending.append(f'self.register_buffer("{name}", {expression})')
        return f"self.{name}"

    def attribute(self, name: str, line: str) -> str:
        """`self.NAME` for what a line of `__init__` makes."""
        self._pending.append(line)
        return f"self.{name}"

    def let(self, expression: str) -> None:
        """Add `NAME = expression`."""
        self.add([f"{self.new()} = {expression}"])

    def add(self, lines: Sequence[str]) -> None:
        """Add lines to forward. DoesNotRun, and nothing is added, when eager does not take them everywhere."""
        layers, self._pending = self.layers + self._pending, []
        body = [*self.lines, *lines]
        values = _sound([_run(layers, body, self.dtype, given) for given in self.arguments()])
        self.layers, self.lines, self.values = layers, body, values

    def forget(self) -> None:
        """Drop layers that no line came to use."""
        self._pending = []


def _run(layers: Sequence[str], lines: Sequence[str], dtype: torch.dtype, given: dict[str, Any]) -> dict[str, Any]:
    """The variables after the lines. DoesNotRun when they raise."""
    module = nn.Module()
    scope = {**NAMES, **given, "self": module}
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            exec("\n".join(layers), scope)
            module.to(dtype).eval()
            exec("\n".join(lines), scope)
    except Exception as error:  # whatever a line raises that does not fit what is there
        raise DoesNotRun from error
    return {name: value for name, value in scope.items() if name not in NAMES and name not in ("self", "__builtins__")}


def _sound(scopes: Sequence[dict[str, Any]]) -> list[Value]:
    """The variables that are alike at all sizes. DoesNotRun for values that no test could judge."""
    values = []
    for name in [name for name in scopes[0] if all(name in scope for scope in scopes)]:
        for path, held in _leaves(name, [scope[name] for scope in scopes]):
            if not _alike(held):
                raise DoesNotRun
            values.append(Value(path, held))
    return values


def _leaves(name: str, held: Sequence[Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """A variable, or the tensors of a structure of them, with the expressions that give them."""
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
    """Whether rank and dtype are the same at all sizes, and every value is finite, moderate and not too many."""
    if len({type(one) for one in held}) > 1:
        return False
    if not isinstance(held[0], torch.Tensor):
        return all(abs(one) <= LARGEST for one in held)
    return len({(t.dim(), t.dtype) for t in held}) == 1 and all(
        0 < t.numel() <= MOST_ELEMENTS and bool(t.isfinite().all()) and float(t.double().abs().max()) <= LARGEST
        for t in held
    )
