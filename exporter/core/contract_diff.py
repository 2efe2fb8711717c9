"""Compare two contracts: can callers of one artifact call the other? Pure functions.

A change is breaking if a call that the old contract allows may be refused or may return outputs of another form, if
the new artifact needs more of the machine or of the program that loads it, or if a baked-in value changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exporter.core.contract_records import Build, Contract, Dim, TensorSpec
from exporter.core.expressions import Expression

WHO_KEEPS = {"": "it keeps no state", "inside": "the artifact carries the state", "outside": "callers carry the state"}
ENDS = 1000  # how many sizes of a symbol are tried at each end of its range


@dataclass(frozen=True)
class Change:
    """One difference, in words."""

    what: str
    breaking: bool = True


def changes(old: Contract, new: Contract) -> tuple[Change, ...]:
    """Return how `new` differs from `old`, with the breaking changes first."""
    found = [*_inputs(old, new), *_outputs(old, new), *_rest(old, new)]
    return tuple(sorted(found, key=lambda change: not change.breaking))


def _inputs(old: Contract, new: Contract) -> Iterator[Change]:
    yield from _names("input", old.inputs, new.inputs)
    given = {spec.name: spec for spec in new.inputs}
    tied: dict[str, _Tie] = {}  # by the symbol of the new contract
    for spec in old.inputs:
        now = given.get(spec.name)
        if now is None:
            continue
        yield from _form("input", spec, now)
        if len(spec.shape) != len(now.shape):
            continue
        for axis, (before, after) in enumerate(zip(spec.shape, now.shape, strict=True)):
            place = f"dimension {axis} of input {spec.name}"
            allowed, allows = _sizes(old, before), _sizes(new, after)
            if allowed != allows:
                breaking = not _within(allowed, allows)
                yield Change(f"{place} was {_dim(old, before)}, is {_dim(new, after)}", breaking)
            if isinstance(after, str):
                now_follows = Expression.parse(after)
                tie = _Tie(place, before, now_follows)
                first = tied.setdefault(now_follows.name, tie)
                if not _agree(old, first, tie):
                    yield Change(f"{place} now has to match {first.partner}")


def _outputs(old: Contract, new: Contract) -> Iterator[Change]:
    kept, added = new.outputs[: len(old.outputs)], new.outputs[len(old.outputs) :]
    moved = {spec.name for spec in old.outputs} & {
        spec.name for spec in added
    }  # the new ones are not after the old ones
    yield from _names("output", old.outputs, new.outputs if moved else kept)
    ties = _ties(old, new)
    for spec, now in zip(old.outputs, kept, strict=False):
        if spec.name != now.name:
            continue
        yield from _form("output", spec, now)
        pairs = list(zip(spec.shape, now.shape, strict=False))
        if len(spec.shape) == len(now.shape) and not all(_follows(old, a, b, ties) for a, b in pairs):
            yield Change(f"output {spec.name} was {_shape(spec)}, is {_shape(now)}")
    for spec in () if moved else added:
        yield Change(f"output {spec.name} is new, after the existing ones", breaking=False)


def _rest(old: Contract, new: Contract) -> Iterator[Change]:
    kept, keeps = (one.state.kept if one.state else "" for one in (old, new))
    if kept != keeps:
        yield Change(f"{WHO_KEEPS[keeps]} (before: {WHO_KEEPS[kept]})")
    for name, value in new.constants.items():
        if name in old.constants and old.constants[name] != value:
            yield Change(f"{name} is baked in as {value!r}, was {old.constants[name]!r}")
    for ops in sorted({*new.ops} - {*old.ops}):
        yield Change(f"it calls operators of {ops}, whose library has to be loaded")
    if old.device != new.device:
        yield Change(f"it is for {new.device}, was for {old.device}")
    yield from _machine(old.build or Build(), new.build or Build())
    for what, before, after in (("in", old.precision, new.precision), ("with torch", old.torch, new.torch)):
        if before != after:
            done = "computes" if what == "in" else "was made"
            yield Change(f"it {done} {what} {after} (before: {before})", breaking=False)


def _machine(old: Build, new: Build) -> Iterator[Change]:
    if more := sorted({*new.isa} - {*old.isa}):
        yield Change(f"it needs a CPU with {', '.join(more)}")
    if new.capability and new.capability != old.capability:
        yield Change(f"its kernels are for compute capability {new.capability}, were for {old.capability or 'none'}")


def _names(kind: str, old: Sequence[TensorSpec], new: Sequence[TensorSpec]) -> Iterator[Change]:
    before, after = [spec.name for spec in old], [spec.name for spec in new]
    for name in before:
        if name not in after:
            yield Change(f"{kind} {name} is missing")
    for name in after:
        if name not in before:
            yield Change(f"{kind} {name} is new" + (": callers have to pass it" if kind == "input" else ""))
    common = [name for name in after if name in before]
    if common != [name for name in before if name in after]:
        yield Change(f"the order of the {kind}s changed: {', '.join(after)}")


def _form(kind: str, old: TensorSpec, new: TensorSpec) -> Iterator[Change]:
    if old.dtype != new.dtype:
        yield Change(f"{kind} {old.name} was {old.dtype}, is {new.dtype}")
    if len(old.shape) != len(new.shape):
        yield Change(f"{kind} {old.name} had {len(old.shape)} dimensions, has {len(new.shape)}")


Allowed = range | tuple[int, ...] | str | None


def _sizes(contract: Contract, dim: Dim) -> Allowed:
    """Return the allowed sizes of a dimension: None for any, and text if they follow no simple rule."""
    if dim is None:
        return None
    if isinstance(dim, int):
        return range(dim, dim + 1)
    expression = Expression.parse(dim)
    bounds = contract.symbols[expression.name]
    if bounds.choices:
        return tuple(sorted(expression.at(size) for size in bounds.choices))
    if expression.divisor == 1:
        sizes = bounds.sizes
        step = expression.factor * bounds.multiple_of
        return range(expression.at(sizes[0]), expression.at(sizes[-1]) + 1, step)
    return f"{Expression('n', expression.factor, expression.offset, expression.divisor)} for n from {bounds}"


def _within(old: Allowed, new: Allowed) -> bool:
    """Return whether every size that was allowed still is."""
    if new is None or old == new:
        return True
    if old is None or isinstance(old, str) or isinstance(new, str):
        return False
    if isinstance(old, tuple) or isinstance(new, tuple):
        return len(old) <= 1_000_000 and {*old} <= {*new}
    return old[0] in new and old[-1] in new and (len(old) == 1 or old.step % new.step == 0)


def _dim(contract: Contract, dim: Dim) -> str:
    if dim is None:
        return "any size"
    if isinstance(dim, int):
        return str(dim)
    return f"{dim} ({contract.symbols[Expression.parse(dim).name]})"


@dataclass(frozen=True)
class _Tie:
    """A dimension of an input: as in the old contract, and as an expression of a symbol of the new one."""

    place: str
    was: Dim
    now: Expression

    @property
    def partner(self) -> str:
        """How a message names this dimension when another has to match it."""
        return Expression.parse(self.was).name if isinstance(self.was, str) else self.place

    def sizes(self, symbol: str, size: int) -> range | None:
        """Return the new symbol's sizes for this size of the old one; None if independent."""
        if isinstance(self.was, int):
            return self.now.sizes(self.was)
        expression = Expression.parse(self.was) if self.was is not None else None
        return self.now.sizes(expression.at(size)) if expression and expression.name == symbol else None


def _ties(old: Contract, new: Contract) -> dict[str, list[_Tie]]:
    """Return the dimensions that each new symbol has in inputs that both contracts have."""
    ties: dict[str, list[_Tie]] = {}
    given = {spec.name: spec for spec in new.inputs}
    for spec in old.inputs:
        now = given.get(spec.name)
        if now is None or len(now.shape) != len(spec.shape):
            continue
        for before, after in zip(spec.shape, now.shape, strict=True):
            if isinstance(after, str):
                expression = Expression.parse(after)
                ties.setdefault(expression.name, []).append(_Tie(spec.name, before, expression))
    return ties


def _tried(contract: Contract, symbol: str) -> Sequence[int]:
    """Return the sizes of a symbol to try: all of them, or those at both ends if there are many."""
    bounds = contract.symbols[symbol]
    sizes = bounds.sizes
    return sizes if len(sizes) <= 2 * ENDS else (*sizes[:ENDS], *sizes[-ENDS:])


def _agree(old: Contract, first: _Tie, other: _Tie) -> bool:
    """Return whether, in every call that was allowed, both dimensions imply the same size of the new symbol."""
    if first.was is None or other.was is None:
        return first.was is other.was is None
    symbols = {Expression.parse(dim).name for dim in (first.was, other.was) if isinstance(dim, str)}
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


def _follows(contract: Contract, old: Dim, new: Dim, ties: dict[str, list[_Tie]]) -> bool:
    """Return whether an output's dimension has the same size as before in every call that was allowed."""
    if not isinstance(old, str) or not isinstance(new, str):
        return old == new
    before, after = Expression.parse(old), Expression.parse(new)
    known = ties.get(after.name, ())
    if not any(tie.sizes(before.name, 1) is not None for tie in known):  # no input determines the symbol
        return before == after
    for size in _tried(contract, before.name):
        may_be = range(-(2**62), 2**62)
        for tie in known:
            sizes = tie.sizes(before.name, size)
            may_be = _both(may_be, sizes) if sizes is not None else may_be
        if {after.at(one) for one in may_be[:ENDS]} - {before.at(size)}:
            return False
    return True


def _shape(spec: TensorSpec) -> str:
    return f"[{', '.join('any' if dim is None else str(dim) for dim in spec.shape)}]"
