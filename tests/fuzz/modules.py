"""Modules drawn from the grammar, as the source of a user's file with a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from fuzz.arithmetic import ARITHMETIC
from fuzz.control import CONTROL
from fuzz.layers import LAYERS
from fuzz.shapes import SHAPES
from fuzz.sketch import Choices, DoesNotRun, Sketch
from fuzz.states import STATES

STATEMENTS = LAYERS + SHAPES + ARITHMETIC + CONTROL + STATES
MOST_STATEMENTS = 6
ATTEMPTS = 4
PART = 64  # bytes per statement: two per choice
DTYPES = ("float32",) * 8 + ("float64",) * 2 + ("bfloat16", "float16")
BATCH, LENGTH = (1, 9, 1), 12
STEPPED = 24  # the largest length if it has a step
Bounds = tuple[int, int, int]  # of a size: min, max, step
KINDS = ("float",) * 4 + ("ids", "bool")

SOURCE = '''"""Drawn by hypothesis."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


class Answer(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
{layers}

    def forward(self, {parameters}):
{lines}


class drawn:
    sizes = {sizes}
    steps = {steps}  # of what the module takes, whatever its sizes say

    @staticmethod
    def load(weights):
        torch.manual_seed(0)
        return Model().to({dtype}).eval()

    @staticmethod
    def inputs({defaults}):
        return {inputs}
'''


@dataclass(frozen=True)
class Drawn:
    """A drawn module, and the bytes that it was made from; hypothesis shows its source."""

    source: str
    data: bytes

    def __repr__(self) -> str:
        """Return the source."""
        return f"a module:\n{self.source}"


@dataclass(frozen=True)
class Parameter:
    """A parameter of forward: its annotation, and the expression of its example in `batch` and `length`."""

    name: str
    annotation: str
    example: str


SIZE = PART * (MOST_STATEMENTS + 2)  # the first part is for dtype, sizes and parameters, the last for the outputs


@st.composite
def modules(draw: st.DrawFn) -> Drawn:
    """Return a strategy for modules of a few statements, each with its recipe.

    One byte string makes a module, with a fixed number of bytes for each statement. A strategy that draws many times
    would make hypothesis generate near copies.
    """
    return make(draw(st.binary(min_size=SIZE, max_size=SIZE)))


def simpler(drawn: Drawn) -> Iterator[Drawn]:
    """Yield the module without one of its statements, then with simpler parameters and simpler outputs."""
    parts = [drawn.data[start : start + PART] for start in range(0, SIZE, PART)]
    count = 1 + Choices(parts[0])(*range(MOST_STATEMENTS))
    nothing = bytes(PART)
    for left_out in range(count, 0, -1) if count > 1 else ():
        rest = parts[1:left_out] + parts[left_out + 1 : -1] + [nothing]
        yield make(bytes([0, count - 2]) + parts[0][2:] + b"".join(rest) + parts[-1])
    for kept in range(2, PART // 2, 4):
        yield make(parts[0][:kept] + bytes(PART - kept) + b"".join(parts[1:]))
    yield make(b"".join(parts[:-1]) + nothing)


def make(data: bytes) -> Drawn:
    """Make a module from bytes."""
    parts = [Choices(data[start : start + PART]) for start in range(0, len(data), PART)]
    choose, answer = parts[0], parts[-1]
    statements = parts[1 : 2 + choose(*range(MOST_STATEMENTS))]
    dtype = choose(*DTYPES)
    lengths = [*((low, LENGTH, 1) for low in (1, 2, 3)), *((step, STEPPED, step) for step in (2, 4))]
    symbols: dict[str, Bounds] = choose({"batch": BATCH}, *({"batch": BATCH, "length": one} for one in lengths))
    base = {name: choose(2, 1, 3, 4) if name == "batch" else choose(5, 3, 4, 8) for name in symbols}
    base |= {name: 2 * step + step * (size % 2) for name, size in base.items() if (step := symbols[name][2]) > 1}
    stated = choose(False, True)
    parameters = _parameters(choose, list(symbols), dtype)
    sketch = Sketch(choose, getattr(torch, dtype), lambda: [_arguments(parameters, s) for s in _tries(symbols)])
    sketch.add([])
    for part in statements:
        sketch.choose = part
        _add_one(sketch)
    sketch.choose = answer
    return Drawn(_source(sketch, parameters, symbols, base, dtype, stated), data)


def _add_one(sketch: Sketch) -> None:
    """Add a statement: the first of a few drawn ones that fits the existing values."""
    for _ in range(ATTEMPTS):
        try:
            sketch.choose(*STATEMENTS)(sketch)
        except DoesNotRun:
            sketch.forget()
        else:
            return


def _tries(symbols: dict[str, Bounds]) -> list[dict[str, int]]:
    """Return the sizes at which a line must run: the middle, the next sizes, each end, and each symbol at its end."""
    middle = {name: low + (3 + i) * step for i, (name, (low, _, step)) in enumerate(symbols.items())}
    ends = [{name: bounds[which] for name, bounds in symbols.items()} for which in (0, 1)]
    after = {name: middle[name] + step for name, (_, _, step) in symbols.items()}
    alone = [{**middle, name: bounds[0]} for name, bounds in symbols.items()]
    return [middle, after, *ends, *alone]


def _arguments(parameters: list[Parameter], sizes: dict[str, int]) -> dict[str, Any]:
    torch.manual_seed(1)
    return {p.name: eval(p.example, {"torch": torch, **sizes}) for p in parameters}


def _parameters(choose: Choices, symbols: list[str], dtype: str) -> list[Parameter]:
    """Return parameters with at least one floating tensor; every symbol is the size of one of them."""
    made = [Parameter("x", "torch.Tensor", _example(choose, "float", symbols, dtype))]
    for name in ("y", "extra", "third")[: choose(0, 1, 2, 3)]:
        made.append(_parameter(choose, name, symbols, dtype))
    for symbol in symbols:
        if not any(symbol in p.example for p in made):
            made.append(Parameter(f"of_{symbol}", "torch.Tensor", f"torch.randn({symbol}, 4, dtype=torch.{dtype})"))
    return made


def _parameter(choose: Choices, name: str, symbols: list[str], dtype: str) -> Parameter:
    def example() -> str:
        return _example(choose, choose(*KINDS), symbols, dtype)

    form = choose("tensor", "tensor", "tensor", "dict", "list", "tuple", "nested", "constant")
    match form:
        case "dict":
            return Parameter(name, "Dict[str, torch.Tensor]", f'{{"a": {example()}, "b": {example()}}}')
        case "list":
            return Parameter(name, "List[torch.Tensor]", f"[{example()}, {example()}]")
        case "tuple":
            return Parameter(name, "Tuple[torch.Tensor, torch.Tensor]", f"({example()}, {example()})")
        case "nested":
            return Parameter(name, "Dict[str, Any]", f'{{"a": [{example()}], "b": {{"c": {example()}, "n": 2}}}}')
        case "constant":
            kind, value = choose(("float", 0.5), ("int", 2), ("bool", True), ("str", "sum"))
            return Parameter(name, kind, repr(value))
    return Parameter(name, "torch.Tensor", example())


def _example(choose: Choices, kind: str, symbols: list[str], dtype: str) -> str:
    """Return an expression in the sizes."""
    shapes = ["batch, 4", "batch, 3, 6", "batch, 2, 6, 5", "4", "batch"] if kind == "float" else ["batch", "batch, 4"]
    if "length" in symbols:
        shapes = ["batch, length, 4", "batch, length", "batch, 3, length", *shapes, "length, batch, 4", "length, 4"]
        shapes += ["batch, 2 * length + 1, 4", "batch, 1, length, 4"] if kind == "float" else []
    shape = choose(*shapes)
    match kind:
        case "ids":
            return f"torch.randint(0, 12, ({shape},))"
        case "bool":
            return f"torch.rand({shape}) > 0.4"
    return f"torch.randn({shape}, dtype=torch.{dtype})"


def _source(
    sketch: Sketch,
    parameters: list[Parameter],
    symbols: dict[str, Bounds],
    base: dict[str, int],
    dtype: str,
    stated: bool,
) -> str:
    return SOURCE.format(
        layers=_indented(sketch.layers or ["self.nothing = nn.Identity()"]),
        parameters=", ".join(f"{p.name}: {p.annotation}" for p in parameters),
        lines=_indented([*sketch.lines, f"return {_answer(sketch)}"]),
        sizes={name: bounds if stated and bounds[2] > 1 else bounds[:2] for name, bounds in symbols.items()},
        steps={name: step for name, (_, _, step) in symbols.items() if step > 1},
        dtype=f"torch.{dtype}",
        defaults=", ".join(f"{name}={size}" for name, size in base.items()),
        inputs=_call(sketch, parameters),
    )


def _indented(lines: list[str]) -> str:
    return "\n".join(f"        {line}" for line in lines)


def _call(sketch: Sketch, parameters: list[Parameter]) -> str:
    """Return the expression that inputs() returns."""
    form = sketch.choose("keyword", "positional", "single")
    if form == "single" and len(parameters) == 1:
        return parameters[0].example
    if form == "keyword":
        return f"{{{', '.join(f'{p.name!r}: {p.example}' for p in parameters)}}}"
    return f"({', '.join(p.example for p in parameters)},)"


def _answer(sketch: Sketch) -> str:
    """Return the expression that forward returns: every unused value, and perhaps more."""
    tensors = [value for value in reversed(sketch.values) if value.tensor]
    first, *rest = [v for v in sketch.unused() if v.tensor] or tensors[:1]
    numbers = [v for v in sketch.unused() if not v.tensor]
    others = [str(value) for value in (rest + numbers)[:4]] or [str(sketch.choose(*tensors[:4]))]
    joined, last = ", ".join(others), others[-1] if rest else tensors[-1]
    size = f"{first}.shape[0]" if first.rank > 0 else "3"
    forms = (
        *("({0}, {1})", "{0}", '{{"first": {0}, "rest": ({1},)}}', "[{0}, {1}]", "({0}, None, {1})", "(({0},), {1})"),
        *('{{"first": {0}, "loss": None, "inner": {{"b": [{1}], "a": {2}}}}}', "({0}, {3}, 0.5, {1})"),
        *("(Answer({0}, {2}), {1})", "Answer({0}, {2})", '{{"first": {0}, "size": {3}, "ratio": 2.5, "rest": [{1}]}}'),
    )
    return sketch.choose(*forms).format(first, joined, last, size)
