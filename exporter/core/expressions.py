"""Sizes computed from a symbol, in the notation of contracts: `(A*NAME+B)//C`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FACTORS = (1, 2, 3, 4)
DIVISORS = (*range(1, 17), 20, 24, 25, 28, 30, 32, 40, 48, 50, 60, 64, 80, 96, 100, 128, 160, 256, 320, 512, 1024)
_FORM = re.compile(r"(\()?(?:(\d+)\*)?([A-Za-z_]\w*)([+-]\d+)?(\))?(?://(\d+))?")


@dataclass(frozen=True)
class Expression:
    """(factor * name + offset) // divisor; factor and divisor are positive."""

    name: str
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    @staticmethod
    @functools.cache
    def parse(text: str) -> Expression:
        """Parse an expression of a contract; a plain name is one too. Raises ValueError for anything else."""
        match = _FORM.fullmatch(text)
        if match is None or bool(match[1]) != bool(match[5]):
            raise ValueError(f"{text!r} is not a size: write NAME, or (A*NAME+B)//C")
        found = Expression(match[3], int(match[2] or 1), int(match[4] or 0), int(match[6] or 1))
        if str(found) != text:
            raise ValueError(f"{text!r} is not a size: write it as {found}")
        return found

    def __post_init__(self) -> None:
        """Raise ValueError for a factor, offset or divisor that a size cannot have."""
        if self.factor < 1 or self.divisor < 1:
            raise ValueError("the factor and the divisor of a size must be positive")
        if max(self.factor, abs(self.offset), self.divisor) >= 1 << 63:
            raise ValueError("a number in a size has more than 64 bits")

    def __str__(self) -> str:
        """Return the shortest notation, which is the one that contracts use."""
        numerator = f"{self.factor}*{self.name}" if self.factor != 1 else self.name
        numerator += f"{self.offset:+d}" if self.offset else ""
        if self.divisor == 1:
            return numerator
        return f"{numerator}//{self.divisor}" if numerator == self.name else f"({numerator})//{self.divisor}"

    def at(self, size: int) -> int:
        """Return the value for this size of the symbol."""
        return (self.factor * size + self.offset) // self.divisor

    def solve(self, value: int) -> int | None:
        """Return the symbol's size for which the expression has this value; None unless it is unique."""
        size, rest = divmod(value - self.offset, self.factor)
        return size if self.divisor == 1 and rest == 0 else None

    def sizes(self, value: int) -> range:
        """Return all sizes of the symbol for which the expression has this value."""
        first = -((self.offset - value * self.divisor) // self.factor)
        last = (value * self.divisor + self.divisor - 1 - self.offset) // self.factor
        return range(first, last + 1)


def fit(name: str, seen: Sequence[tuple[int, int]]) -> Expression | None:
    """Return the simplest expression that fits every (size, value) pair.

    Returns None if none fits or fewer than three distinct pairs were seen. If several offsets fit, prefers rounding
    down, then rounding up, then an offset of -1 or 1, then the offset nearest to 0.
    """
    if len(set(seen)) < 3:
        return None
    for divisor in DIVISORS:
        for factor in FACTORS if divisor > 1 else [*FACTORS, *_slopes(seen)]:
            low = max(value * divisor - factor * size for size, value in seen)
            high = min(value * divisor - factor * size + divisor - 1 for size, value in seen)
            if low <= high:
                offset = min(_preferred(low, high, divisor), key=abs)
                return Expression(name, factor, offset, divisor)
    return None


def _slopes(seen: Sequence[tuple[int, int]]) -> list[int]:
    """Return the slope through two different sizes if it is a positive integer."""
    (size, value), *others = seen
    other = next(pair for pair in others if pair[0] != size)
    slope, rest = divmod(other[1] - value, other[0] - size)
    return [slope] if slope > 0 and rest == 0 else []


def _preferred(low: int, high: int, divisor: int) -> Iterable[int]:
    """Return the candidate offsets from `low` to `high`: only the most usual one if any usual one fits."""
    usual = [offset for offset in (0, divisor - 1, -1, 1) if low <= offset <= high]
    return usual[:1] or range(low, high + 1)
