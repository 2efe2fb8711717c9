"""Sizes that follow from a symbol: `(A*NAME+B)//C`, as contracts write them."""

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
        """The expression that a contract writes; a name alone is one too. ValueError for anything else."""
        match = _FORM.fullmatch(text)
        if match is None or bool(match[1]) != bool(match[5]):
            raise ValueError(f"{text!r} is no size: write NAME, or (A*NAME+B)//C")
        found = Expression(match[3], int(match[2] or 1), int(match[4] or 0), int(match[6] or 1))
        if str(found) != text:
            raise ValueError(f"{text!r} is no size: write it as {found}")
        return found

    def __post_init__(self) -> None:
        """ValueError for what is no size."""
        if self.factor < 1 or self.divisor < 1:
            raise ValueError("factor and divisor of a size are positive")
        if max(self.factor, abs(self.offset), self.divisor) >= 1 << 63:
            raise ValueError("a number of a size has more than 64 bits")

    def __str__(self) -> str:
        """As contracts write it, the shortest way."""
        numerator = f"{self.factor}*{self.name}" if self.factor != 1 else self.name
        numerator += f"{self.offset:+d}" if self.offset else ""
        if self.divisor == 1:
            return numerator
        return f"{numerator}//{self.divisor}" if numerator == self.name else f"({numerator})//{self.divisor}"

    def at(self, size: int) -> int:
        """Its value where the symbol has this size."""
        return (self.factor * size + self.offset) // self.divisor

    def solve(self, value: int) -> int | None:
        """The symbol's size that gives this value; None when there is none, or more than one may."""
        size, rest = divmod(value - self.offset, self.factor)
        return size if self.divisor == 1 and rest == 0 else None

    def sizes(self, value: int) -> range:
        """The symbol's sizes that give this value."""
        first = -((self.offset - value * self.divisor) // self.factor)
        last = (value * self.divisor + self.divisor - 1 - self.offset) // self.factor
        return range(first, last + 1)


def fit(name: str, seen: Sequence[tuple[int, int]]) -> Expression | None:
    """The simplest expression that gives every (size, value) seen; None when none does, or fewer than three were seen.

    Where several offsets fit, the one nearest to rounding down, up, or to nothing is taken.
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
    """The whole slope through the first two points, where it is a positive one."""
    (size, value), *others = seen
    other = next(pair for pair in others if pair[0] != size)
    slope, rest = divmod(other[1] - value, other[0] - size)
    return [slope] if slope > 0 and rest == 0 else []


def _preferred(low: int, high: int, divisor: int) -> Iterable[int]:
    usual = [offset for offset in (0, divisor - 1, -1, 1) if low <= offset <= high]
    return usual[:1] or range(low, high + 1)
