"""Sizes computed from symbols, in the notation of contracts: `(A*NAME+B)//C`, or with a sum of several names."""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

FACTORS = (1, 2, 3, 4)
DIVISORS = (
    *(*range(1, 17), 20, 24, 25, 28, 30, 32, 40, 48, 50, 60, 64, 80, 96, 100, 128, 160, 192, 200, 240, 256, 320, 384),
    *(400, 441, 480, 512, 600, 640, 960, 1024, 1280, 1920, 2048),
)
_TERM = r"(?:\d+\*)?[A-Za-z_]\w*"
_FORM = re.compile(rf"(\()?({_TERM}(?:\+{_TERM})*)([+-]\d+)?(\))?(?://(\d+))?")

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip

Seen = Sequence[tuple[Mapping[str, int], int]]  # a dimension's values, each with the sizes that it was seen at


@dataclass(frozen=True)
class Expression:
    """(the sum of factor * name + offset) // divisor; factors and divisor are positive.

    `terms` holds each name with its factor, in alphabetical order. Most expressions have only one.
    """

    terms: tuple[tuple[str, int], ...]
    offset: int = 0
    divisor: int = 1

    @staticmethod
    @functools.cache
    def parse(text: str) -> Expression:
        """Parse an expression of a contract; a plain name is one too. Raises ValueError for anything else."""
        match = _FORM.fullmatch(text)
        if match is None or bool(match[1]) != bool(match[4]):
            raise ValueError(f"{text!r} is not a size: write NAME, (A*NAME+B)//C, or a sum of names")
        factors: dict[str, int] = {}
        for term in match[2].split("+"):
            factor, _, name = term.rpartition("*")
            if factor and not int(factor):
                raise ValueError(f"{text!r} is not a size: its factors must be positive")
            factors[name] = factors.get(name, 0) + int(factor or 1)
        found = Expression(tuple(sorted(factors.items())), int(match[3] or 0), int(match[5] or 1))
        if str(found) != text:
            raise ValueError(f"{text!r} is not a size: write it as {found}")
        return found

    def __post_init__(self) -> None:
        """Raise ValueError for factors, an offset or a divisor that a size cannot have."""
        if self.divisor < 1 or any(factor < 1 for _, factor in self.terms):
            raise ValueError("the factors and the divisor of a size must be positive")
        if max(abs(self.offset), self.divisor, *(factor for _, factor in self.terms)) >= 1 << 63:
            raise ValueError("a number in a size has more than 64 bits")

    def __str__(self) -> str:
        """Return the shortest notation, which is the one that contracts use."""
        numerator = "+".join(name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms)
        numerator += f"{self.offset:+d}" if self.offset else ""
        if self.divisor == 1:
            return numerator
        return f"{numerator}//{self.divisor}" if numerator == self.terms[0][0] else f"({numerator})//{self.divisor}"

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols, in alphabetical order."""
        return tuple(name for name, _ in self.terms)

    @property
    def is_sum(self) -> bool:
        """Whether it depends on several symbols."""
        return len(self.terms) > 1

    @property
    def is_symbol(self) -> bool:
        """Whether it is nothing but a symbol."""
        return len(self.terms) == 1 and self.terms[0][1] == self.divisor == 1 and not self.offset

    def unknown(self, known: Mapping[str, object]) -> tuple[str, ...]:
        """Return the symbols that are not known."""
        return tuple(name for name, _ in self.terms if name not in known)

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the value for these sizes of its symbols."""
        return (sum(factor * sizes[name] for name, factor in self.terms) + self.offset) // self.divisor

    def given(self, known: Mapping[str, int]) -> Expression | int:
        """Return the expression with the known symbols replaced by their sizes: a number if all are known."""
        if not (unknown := self.unknown(known)):
            return self.at(known)
        rest = tuple(term for term in self.terms if term[0] in unknown)
        return Expression(rest, self._numerator(known), self.divisor)

    def renamed(self, names: Mapping[str, str]) -> Expression:
        """Return the expression with other names for some of its symbols, which must stay distinct."""
        terms = sorted((names.get(name, name), factor) for name, factor in self.terms)
        return Expression(tuple(terms), self.offset, self.divisor)

    def solve(self, value: int, known: Mapping[str, int] | None = None) -> int | None:
        """Return the size of the only unknown symbol for which the expression has this value; None unless unique."""
        if self.divisor > 1 or len(unknown := self.unknown(known or {})) != 1:
            return None
        size, rest = divmod(value - self._numerator(known or {}), self._factor(unknown[0]))
        return size if rest == 0 else None

    def sizes(self, value: int, known: Mapping[str, int] | None = None) -> range:
        """Return all sizes of the only unknown symbol for which the expression has this value."""
        (name,) = self.unknown(known or {})
        factor, offset = self._factor(name), self._numerator(known or {})
        first = -((offset - value * self.divisor) // factor)
        last = (value * self.divisor + self.divisor - 1 - offset) // factor
        return range(first, last + 1)

    def _factor(self, name: str) -> int:
        return next(factor for own, factor in self.terms if own == name)

    def _numerator(self, known: Mapping[str, int]) -> int:
        """Return the part of the numerator that is known."""
        return self.offset + sum(factor * known[name] for name, factor in self.terms if name in known)


def is_combined(dim: int | str | None) -> bool:
    """Return whether a contract's dimension depends on several sizes: on a sum of them, or in another way (None)."""
    return dim is None or (isinstance(dim, str) and Expression.parse(dim).is_sum)


def fit(names: Sequence[str], seen: Seen) -> Expression | None:
    """Return the simplest expression of these symbols that fits every observation.

    Among the observations are some in which only one of the symbols differs from the first. Returns None if no
    expression fits, or if these are fewer than three distinct ones for a symbol; for the plain sum of several symbols,
    two are enough. A quotient of a sum is not tried: too many fit, and a sum of two quotients looks like one. If
    several offsets fit, prefers rounding down, then rounding up, then an offset of -1 or 1, then the offset nearest
    to 0. A larger divisor with one of these usual offsets is preferred to a smaller one with another.
    """
    base = seen[0][0]
    alone = {
        name: [(sizes[name], value) for sizes, value in seen if all(sizes[n] == base[n] for n in names if n != name)]
        for name in sorted(names)
    }
    few = {name for name, pairs in alone.items() if len(set(pairs)) < 3}
    if few and len(alone) == 1:
        return None
    unusual: Expression | None = None
    for divisor in DIVISORS if len(alone) == 1 else (1,):
        choices = [
            [f for f in _factors(pairs, divisor, name in few) if _range(((f * n, v) for n, v in pairs), divisor)]
            for name, pairs in alone.items()
        ]
        for factors in itertools.product(*choices):
            terms = tuple(zip(alone, factors, strict=True))
            if offsets := _range(((sum(f * sizes[n] for n, f in terms), value) for sizes, value in seen), divisor):
                found = Expression(terms, min(_preferred(offsets, divisor), key=abs), divisor)
                if divisor == 1 or found.offset in (0, divisor - 1, -1, 1):
                    return found
                unusual = unusual or found
    return unusual


def doubt(name: str, seen: Seen, sizes: Iterable[int]) -> int | None:
    """Return the size that best distinguishes the expressions of a symbol that fit every observation.

    Returns None if all of them agree at all these sizes.
    """
    pairs = [(at[name], value) for at, value in seen]
    fitting = [
        (factor, offset, divisor)
        for divisor in DIVISORS
        for factor in _factors(pairs, divisor, False)
        if (offsets := _range(((factor * size, value) for size, value in pairs), divisor))
        for offset in {*offsets[:: len(offsets) // 8 + 1], offsets[-1]}
    ]

    def most(size: int) -> int:
        values = collections.Counter((factor * size + offset) // divisor for factor, offset, divisor in fitting)
        return max(values.values(), default=0)

    best = min(sizes, key=most, default=None)
    return best if best is not None and most(best) < len(fitting) else None


def _factors(pairs: Sequence[tuple[int, int]], divisor: int, only_plain: bool) -> Iterable[int]:
    """Return the factors to try: the small ones and, without a divisor, the slope of the observations."""
    if only_plain:
        return (1,)
    return FACTORS if divisor > 1 else dict.fromkeys((*FACTORS, *_slopes(pairs)))


def _slopes(seen: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the slope through two different sizes if it is a positive integer."""
    (size, value), *others = seen
    other = next(pair for pair in others if pair[0] != size)
    slope, rest = divmod(other[1] - value, other[0] - size)
    if slope > 0 and rest == 0:
        yield slope


def _range(pairs: Iterable[tuple[int, int]], divisor: int) -> range:
    """Return the offsets with which (number + offset) // divisor is the value of every (number, value) pair."""
    lows = [value * divisor - number for number, value in pairs]
    return range(max(lows), min(lows) + divisor)


def _preferred(offsets: range, divisor: int) -> Iterable[int]:
    """Return the candidate offsets: only the most usual one if any usual one fits."""
    usual = [offset for offset in (0, divisor - 1, -1, 1) if offset in offsets]
    return usual[:1] or offsets


def value(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of any whole-number expression at these sizes; None if it has other functions or names.

    In contrast to `Expression`, it may be any sum, product, quotient or remainder, such as `(h//4)*(w//4)`.
    """

    def of(node: ast.AST) -> int:
        match node:
            case ast.Expression():
                return of(node.body)
            case ast.Constant(value=int(number)):
                return number
            case ast.Name():
                return sizes[node.id]
            case ast.UnaryOp(op=ast.USub()):
                return -of(node.operand)
            case ast.BinOp():
                return int(_OPERATORS[type(node.op)](of(node.left), of(node.right)))
        raise ValueError(text)

    try:
        return of(ast.parse(text, mode="eval"))
    except (ArithmeticError, LookupError, RecursionError, SyntaxError, ValueError):
        return None
