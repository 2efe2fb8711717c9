"""Finding the sizes that torch.export fixes, and the lines responsible, from its log and its errors."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from exporter.core import source_lines
from exporter.core.contract_records import Contract
from exporter.core.expressions import Expression
from exporter.core.parity_records import SizeLimit
from exporter.model import sizes_in_builtins

LOGGER = "torch.fx.experimental.symbolic_shapes"
_CREATED = re.compile(r"create_symbol (\w+) = (\d+) for L\['(?:tensors|inputs)'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
_GUARD = re.compile(r"eval (?:\[guard suppressed\] )?(.+?) \[guard added\]")
_STEP = re.compile(r"^\s*(\w+) = (\d+)\*_\1(?: ([+-]) (\d+))?$", re.MULTILINE)  # in the fixes that an error suggests
_FIXED = re.compile(r"set_replacement (\w+) = (\d+) ")


# The functions in torch's conditions on sizes.
_WORDS: dict[str, Callable[..., Any]] = {
    "Eq": operator.eq,
    "Ne": operator.ne,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "Max": max,
    "Min": min,
    "IntTrueDiv": operator.truediv,
    "FloatPow": operator.pow,
    "FloatTrueDiv": operator.truediv,
    "ToFloat": float,
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "TruncToInt": math.trunc,
    "RoundToInt": round,
}
_HELD = re.compile(r"Eq\((.+), (-?\d+)\)")  # a derived size that became a number
_ROUNDED = re.compile(r"(Ceil|Floor|Round)ToInt\(IntTrueDiv\((\w+), (\w+)\)\)")


@dataclass(frozen=True)
class Rule:
    """The sizes that torch.export accepts: `multiple * n + offset`."""

    multiple: int
    offset: int = 0

    def __str__(self) -> str:
        """Return the formula in n."""
        return f"{self.multiple}*n{self.offset:+d}" if self.offset else f"{self.multiple}*n"


def rules(error: str) -> dict[str, Rule]:
    """Return the steps, by symbol, that torch.export suggests if a requested range violates its conditions."""
    found = {}
    for name, multiple, sign, offset in _STEP.findall(error):
        found[name] = Rule(int(multiple), int(f"{sign}{offset}") if offset else 0)
    return found


@dataclass
class Specializations(logging.Handler):
    """A log handler that records the dimensions that torch.export fixes: (input, axis) to (size, `file:line`).

    Only frames below a function called `within` count; frames above it belong to the caller of exporter.
    """

    within: str
    dimensions: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)  # the steps that torch.export requires
    relaxed: bool = False  # whether torch.export then chose the ranges
    callers: dict[int, dict[str, Any]] = field(default_factory=dict)  # modules with calls of builtins that fixed a size
    _symbols: dict[str, tuple[int, int]] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)  # sizes in the example, by torch.export's symbols
    _guards: dict[str, str] = field(default_factory=dict)  # conditions on sizes, with their lines

    def __post_init__(self) -> None:
        """Handle records from level INFO."""
        super().__init__(logging.INFO)

    def __hash__(self) -> int:
        """Hash by identity, because logging keeps handlers in sets."""
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Record which symbol stands for which dimension, and where a symbol became a number."""
        message = record.getMessage()
        if match := _CREATED.match(message):
            self._symbols[match[1]], self._sizes[match[1]] = (int(match[3]), int(match[4])), int(match[2])
        elif match := _GUARD.match(message):
            self._guards.setdefault(match[1], self._here(_HELD.fullmatch(match[1]) is not None))
        elif (match := _FIXED.match(message)) and match[1] in self._symbols:
            self.dimensions.setdefault(self._symbols[match[1]], (int(match[2]), self._here(True)))

    def _here(self, fixed: bool) -> str:
        """Return the current line of the model; note its module if a call of a builtin there fixed a size."""
        frame = source_lines.frame_here(self.within)
        if frame is None:
            return ""
        if fixed:
            sizes_in_builtins.note(self.callers, frame, sizes_in_builtins.CALLS)
        return source_lines.shown(frame.f_code.co_filename, frame.f_lineno)

    def symbols(self, contract: Contract) -> set[str]:
        """Return the contract's symbols that were fixed."""
        dims = [contract.inputs[index].shape[axis] for index, axis in self.dimensions]
        return {name for dim in dims if isinstance(dim, str) for name in Expression.parse(dim).names}

    def place(self, contract: Contract, name: str, refused: int, step: int = 1) -> str:
        """Return the line of the first condition that fails when this symbol has the refused size; "" if there is none.

        torch.export may also require a step for a condition that it cannot decide, which contains a division by it.
        """
        follows = {
            symbol: Expression.parse(dim)
            for symbol, (index, axis) in self._symbols.items()
            if isinstance(dim := contract.inputs[index].shape[axis], str)
        }
        own = {symbol: e for symbol, e in follows.items() if name in e.names}
        known = self._captured_at(follows) | {name: refused}
        sizes = self._sizes | {symbol: e.at(known) for symbol, e in own.items() if not e.unknown(known)}
        divided = re.compile(rf"\b(?:{'|'.join(own) or '!'})\b.*//{step}\)")
        lines = [(condition, line) for condition, line in self._guards.items() if line]
        broken = [line for condition, line in lines if not _holds(condition, sizes)]
        undecided = [line for condition, line in lines if step > 1 and divided.search(condition)]
        return next(iter((*broken, *undecided)), "")

    def _captured_at(self, follows: dict[str, Expression]) -> dict[str, int]:
        """Return the contract's sizes in the example, as far as dimensions of only one symbol determine them."""
        solved = {e.names[0]: e.solve(self._sizes[symbol]) for symbol, e in follows.items() if not e.is_sum}
        return {name: size for name, size in solved.items() if size is not None}

    def fixed(self, contract: Contract) -> tuple[SizeLimit, ...]:
        """Return each dimension that was promised as dynamic but fixed, with its line if that is known."""
        found: dict[SizeLimit, None] = {}
        for (index, axis), (size, place) in self.dimensions.items():
            dim = contract.inputs[index].shape[axis]
            if isinstance(dim, str):
                found[SizeLimit(dim, "fixed", str(size), Expression.parse(dim).names, place)] = None
        placed = {(limit.of, limit.to) for limit in found if limit.place}  # one size may be that of several inputs
        said = {limit: None for limit in found if limit.place or (limit.of, limit.to) not in placed}
        return tuple(said | dict.fromkeys(self._held(contract)))

    def _held(self, contract: Contract) -> Iterator[SizeLimit]:
        """Yield derived sizes that were fixed because an operator used a number instead of a size."""
        dims = {symbol: contract.inputs[index].shape[axis] for symbol, (index, axis) in self._symbols.items()}
        follows = {symbol: Expression.parse(dim) for symbol, dim in dims.items() if isinstance(dim, str)}
        named = {symbol: e for symbol, e in follows.items() if not e.unknown(contract.symbols)}
        for condition, place in self._guards.items():
            match = _HELD.fullmatch(condition)
            used = set(re.findall(r"\w+", condition)) & named.keys()
            if not match or not place or not used or match[1] in named or int(match[2]) in (0, 1):
                continue
            if all(_holds(condition, self._at(named, contract, end)) for end in (0, -1)):
                continue
            words = re.sub(r"\w+", lambda word: str(named.get(word[0], word[0])), match[1])
            rounded = _ROUNDED.sub(lambda m: f"{m[1].lower()}({m[2]}/{m[3]})", words)
            symbols = tuple(dict.fromkeys(name for symbol in sorted(used) for name in named[symbol].names))
            yield SizeLimit(rounded, "fixed", match[2], symbols, place)

    def _at(self, named: dict[str, Expression], contract: Contract, end: int) -> dict[str, int]:
        """Return every size at one end of the promised ranges."""
        ends = {name: bounds.sizes[end] for name, bounds in contract.symbols.items()}
        return self._sizes | {symbol: e.at(ends) for symbol, e in named.items()}


def _holds(condition: str, sizes: dict[str, int]) -> bool:
    """Return whether a condition of torch's log holds; conditions that cannot be evaluated count as true."""
    try:
        return bool(eval(condition, {"__builtins__": {}}, {**_WORDS, **sizes}))
    except Exception:  # unknown functions, or a division by zero
        return True


@contextlib.contextmanager
def watch(within: str) -> Iterator[Specializations]:
    """Capture torch.export's log without printing it."""
    logger, found = logging.getLogger(LOGGER), Specializations(within)
    level, propagate = logger.level, logger.propagate
    others = list(logger.handlers)
    try:
        logger.handlers[:] = [found]
        logger.setLevel(logging.INFO)
        logger.propagate = False
        yield found
    finally:
        logger.handlers[:] = others
        logger.setLevel(level)
        logger.propagate = propagate
