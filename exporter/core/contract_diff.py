"""Compare two contracts: can callers of one artifact call the other? Pure functions.

A change is breaking if a call that the old contract allows may be refused or may return outputs of another form, if
the new artifact needs more of the machine or of the program that loads it, or if a baked-in value changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from exporter.core.contract_records import Build, Contract, Dim, TensorSpec
from exporter.core.contract_ties import Tie, agree, follows, holds, ties_of
from exporter.core.expressions import Expression
from exporter.core.size_range import Range

WHO_KEEPS = {"": "it keeps no state", "inside": "the artifact carries the state", "outside": "callers carry the state"}


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
    tied: dict[str, Tie] = {}  # by the symbol of the new contract
    sums: list[Tie] = []
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
                tie = Tie(place, before, Expression.parse(after))
                if tie.now.is_sum:
                    sums.append(tie)
                    continue
                first = tied.setdefault(tie.now.names[0], tie)
                if not agree(old, first, tie):
                    yield Change(f"{place} now has to match {first.partner}")
    for tie in sums:
        if not holds(tie, {name: [one] for name, one in tied.items()}, sums):
            yield Change(f"{tie.place} now has to be {tie.now}")


def _outputs(old: Contract, new: Contract) -> Iterator[Change]:
    kept, added = new.outputs[: len(old.outputs)], new.outputs[len(old.outputs) :]
    moved = {spec.name for spec in old.outputs} & {
        spec.name for spec in added
    }  # the new ones are not after the old ones
    yield from _names("output", old.outputs, new.outputs if moved else kept)
    ties = ties_of(old, new)
    for spec, now in zip(old.outputs, kept, strict=False):
        if spec.name != now.name:
            continue
        yield from _form("output", spec, now)
        pairs = list(zip(spec.shape, now.shape, strict=False))
        if len(spec.shape) == len(now.shape) and not all(follows(old, a, b, ties) for a, b in pairs):
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
    ranges = {name: contract.symbols[name] for name in expression.names}
    if not expression.is_sum and (bounds := ranges[expression.names[0]]).choices:
        return tuple(sorted(expression.at({expression.names[0]: size}) for size in bounds.choices))
    low, high = (expression.at({name: bounds.sizes[end] for name, bounds in ranges.items()}) for end in (0, -1))
    if expression.divisor == 1 and (step := _step([(f, ranges[name]) for name, f in expression.terms])):
        return range(low, high + 1, step)
    letters = dict(zip(expression.names, "nmlkji", strict=False))  # what callers name them makes no difference
    said = expression.renamed(letters if len(letters) == len(ranges) else {})
    return f"{said} for {' and '.join(f'{letters.get(name, name)} from {b}' for name, b in ranges.items())}"


def _step(terms: Iterable[tuple[int, Range]]) -> int:
    """Return the step of a sum that has no gaps between steps; 0 if it has, or may have."""
    steps = sorted(
        (factor * bounds.multiple_of, len(bounds.sizes)) for factor, bounds in terms if len(bounds.sizes) > 1
    )
    least, reached = steps[0][0] if steps else 1, 0
    if any(bounds.choices for _, bounds in terms):
        return 0
    for step, count in steps:
        if step % least or step > reached + least:
            return 0
        reached += step * (count - 1)
    return least


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
    expression = Expression.parse(dim)
    if not expression.is_sum:
        return f"{dim} ({contract.symbols[expression.names[0]]})"
    return f"{dim} ({', '.join(f'{name} {contract.symbols[name]}' for name in expression.names)})"


def _shape(spec: TensorSpec) -> str:
    return f"[{', '.join('any' if dim is None else str(dim) for dim in spec.shape)}]"
