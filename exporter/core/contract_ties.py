"""How the dimensions of one contract follow from those of another, which the comparison of contracts needs."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.core.contract_records import Contract, Dim
from exporter.core.expressions import Expression

ENDS = 1000  # how many sizes of a symbol are tried at each end of its range


@dataclass(frozen=True)
class Tie:
    """A dimension of an input: as in the old contract, and as an expression of symbols of the new one."""

    place: str
    was: Dim
    now: Expression

    @property
    def partner(self) -> str:
        """How a message names this dimension when another has to match it."""
        was = Expression.parse(self.was) if isinstance(self.was, str) else None
        return (was.names[0] if not was.is_sum else str(was)) if was else self.place

    def sizes(self, symbol: str, size: int) -> range | None:
        """Return the new symbol's sizes for this size of the old one; None if independent."""
        if isinstance(self.was, int):
            return self.now.sizes(self.was)
        expression = Expression.parse(self.was) if self.was is not None else None
        return self.now.sizes(expression.at({symbol: size})) if expression and expression.names == (symbol,) else None


def ties_of(old: Contract, new: Contract) -> dict[str, list[Tie]]:
    """Return the dimensions that each new symbol has in inputs that both contracts have."""
    ties: dict[str, list[Tie]] = {}
    given = {spec.name: spec for spec in new.inputs}
    for spec in old.inputs:
        now = given.get(spec.name)
        if now is None or len(now.shape) != len(spec.shape):
            continue
        for before, after in zip(spec.shape, now.shape, strict=True):
            if isinstance(after, str):
                expression = Expression.parse(after)
                if not expression.is_sum:
                    ties.setdefault(expression.names[0], []).append(Tie(spec.name, before, expression))
    return ties


def _tried(contract: Contract, symbol: str) -> Sequence[int]:
    """Return the sizes of a symbol to try: all of them, or those at both ends if there are many."""
    bounds = contract.symbols[symbol]
    sizes = bounds.sizes
    return sizes if len(sizes) <= 2 * ENDS else (*sizes[:ENDS], *sizes[-ENDS:])


def agree(old: Contract, first: Tie, other: Tie) -> bool:
    """Return whether, in every call that was allowed, both dimensions imply the same size of the new symbol."""
    if first.was is None or other.was is None:
        return first.was is other.was is None
    if first.was == other.was and first.now == other.now:
        return True
    was = [Expression.parse(dim) for dim in (first.was, other.was) if isinstance(dim, str)]
    if any(one.is_sum for one in was):
        plain = Expression(((first.now.names[0], 1),))
        known = [_in_old(plain, {first.now.names[0]: [tie]}) for tie in (first, other)]
        return known[0] is not None and known[0] == known[1]
    symbols = {name for one in was for name in one.names}
    free = [symbol for symbol in symbols if len(_tried(old, symbol)) > 1]
    if len(free) > 1:
        return False
    symbol = next(iter(free or symbols), "")
    for size in _tried(old, symbol) if symbol else (0,):
        one, two = first.sizes(symbol, size), other.sizes(symbol, size)
        if one is None or two is None:  # a symbol with a single size
            return len(symbols) > 1
        if not _both(one, two):
            return False
    return True


def _both(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def follows(contract: Contract, old: Dim, new: Dim, ties: dict[str, list[Tie]]) -> bool:
    """Return whether an output's dimension has the same size as before in every call that was allowed."""
    if not isinstance(old, str) or not isinstance(new, str):
        return old == new
    before, after = Expression.parse(old), Expression.parse(new)
    if not after.unknown(ties) and _in_old(after, ties) == _linear(old):
        return True
    if before.is_sum or after.is_sum:
        return before == after and all(tie.was == str(tie.now) for tie in _used(after, ties))
    ((was, _),), ((now, _),) = before.terms, after.terms
    known = ties.get(now, ())
    if not any(tie.sizes(was, 1) is not None for tie in known):  # no input determines the symbol
        return before == after
    for size in _tried(contract, was):
        may_be = range(-(2**62), 2**62)
        for tie in known:
            sizes = tie.sizes(was, size)
            may_be = _both(may_be, sizes) if sizes is not None else may_be
        if {after.at({now: one}) for one in may_be[:ENDS]} - {before.at({was: size})}:
            return False
    return True


def holds(tie: Tie, ties: Mapping[str, Sequence[Tie]], sums: Sequence[Tie]) -> bool:
    """Return whether, in every call that was allowed, an input's dimension is the sum that it is in the new contract.

    A dimension that could have any size does not count, because its range is new. `ties` are those of the new symbols;
    a symbol without one is determined by the sums.
    """
    unknown = tie.now.unknown(ties)
    if tie.was is None or (not unknown and _in_old(tie.now, ties) == _linear(tie.was)):
        return True
    others = [one for one in sums if not {*unknown}.isdisjoint(one.now.names)]
    return tie.was == str(tie.now) and all(one.was == str(one.now) for one in (*_used(tie.now, ties), *others))


def _used(expression: Expression, ties: Mapping[str, Sequence[Tie]]) -> list[Tie]:
    return [tie for name in expression.names for tie in ties.get(name, ())]


_Linear = tuple[Mapping[str, int], int, int]  # the factors by name, the offset and the divisor


def _linear(dim: Dim) -> _Linear | None:
    """Return a dimension in a form that can be compared; None for any size."""
    if isinstance(dim, str):
        expression = Expression.parse(dim)
        return dict(expression.terms), expression.offset, expression.divisor
    return None if dim is None else ({}, dim, 1)


def _in_old(expression: Expression, ties: Mapping[str, Sequence[Tie]]) -> _Linear | None:
    """Return what an expression of new symbols is in the old contract's symbols, or None if that is not known.

    Each new symbol is known if an input's dimension is the symbol, with an offset or without.
    """
    factors: collections.Counter[str] = collections.Counter()
    offset = expression.offset
    for name, factor in expression.terms:
        plain = (tie for tie in ties[name] if tie.now.terms == ((name, 1),) and tie.now.divisor == 1)
        was = next(((one, tie.now.offset) for tie in plain if (one := _linear(tie.was)) and one[2] == 1), None)
        if was is None:
            return None
        (terms, added, _), taken = was
        factors.update({own: factor * inner for own, inner in terms.items()})
        offset += factor * (added - taken)
    if not factors:
        return {}, offset // expression.divisor, 1
    return dict(factors), offset, expression.divisor
