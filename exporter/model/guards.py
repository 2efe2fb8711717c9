"""The conditions on sizes under which torch.export's graph holds, evaluated for many sizes without running the graph.

A golden has few sizes. A graph that assumes `length % 7 != 0` is right at most of them.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from exporter.core.contract import shape_at
from exporter.core.contract_records import Contract
from exporter.core.errors import ContractError
from exporter.core.expressions import is_combined
from exporter.core.size_range import Range, Sizes

Holds = Callable[[Sizes], bool]
MOST = 1000  # sizes of one symbol to evaluate; a larger range is evaluated at even distances
COMBINED = 500  # combinations of sizes to evaluate
FAR = 16  # how many times more elements than the example a case may have
CASES = 2  # cases per symbol, and of combinations
CLASHES = 4  # combinations to try
ORDERS = 24  # of symbols that depend on each other
FEW, MANY = 4, 64  # sizes of two symbols to evaluate together
PAIRS = 2000  # such pairs of sizes of all symbols
CUTS, BISECTED = 32, 12  # how often ranges are cut for sizes that must differ, and each end is moved


def conditions(program: torch.export.ExportedProgram, contract: Contract) -> Holds:
    """Return a function that tells whether the graph holds at some sizes; True if torch records no conditions."""
    check: Any = getattr(program.module(), "_guards_fn", None)

    def holds(sizes: Sizes) -> bool:
        try:
            shapes = [shape_at(spec, sizes) for spec in contract.inputs]
        except ContractError:  # a size that does not follow from the symbols
            return True
        try:
            check(*(torch.empty(shape, device="meta") for shape in shapes))
        except Exception:  # torch raises an AssertionError, or what the expression raises
            return False
        return True

    return holds if check is not None else lambda sizes: True


def drop_needless(program: torch.export.ExportedProgram, contract: Contract) -> None:
    """Remove the program's conditions if some do not hold at sizes of the contract, at which the graph is right.

    What remains are the ranges of single sizes. The conditions stay if all sizes of the contract meet them, because
    `torch.export.load` knows no contract.
    """
    first = {name: bounds.sizes[0] for name, bounds in contract.symbols.items()}
    holds = conditions(program, contract)
    if not holds(first) or _violations(holds, first, contract.symbols):
        program._guards_code = []


def ranges_only(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """Return the module of the program as it is after `drop_needless`."""
    conditions, program._guards_code = program._guards_code, []
    try:
        return program.module()
    finally:
        program._guards_code = conditions


def violations(holds: Holds, base: Sizes, symbols: Mapping[str, Range]) -> list[Sizes]:
    """Return sizes within the ranges at which the graph does not hold, the nearest to the example for each symbol.

    Combinations of sizes follow, of which none alone breaks a condition. Sizes at which a call costs far more than at
    the example's are left out. Returns none if the example breaks a condition.
    """
    if not holds(base):
        return []
    return [one for one in _violations(holds, base, symbols) if _growth(one, base) <= FAR]


def joint_extremes(contract: Contract, base: Sizes) -> list[Sizes]:
    """Return all sizes at their least and all at their largest, if a size of an input depends on several others.

    torch.export may decide conditions on such a size as if each of the others were at least 2. If the contract cannot
    express it, they are not evaluated either. Sizes at which a call costs far more than at the example's are left out.
    """
    if not any(is_combined(dim) for spec in contract.inputs for dim in spec.shape):
        return []
    ends = [{**base, **{name: r.sizes[end] for name, r in contract.symbols.items()}} for end in (0, -1)]
    return [sizes for sizes in ends if _growth(sizes, base) <= FAR]


def _violations(holds: Holds, base: Sizes, symbols: Mapping[str, Range]) -> list[Sizes]:
    if not symbols:
        return []
    alone = {name: list(broken(holds, name, base, bounds)) for name, bounds in symbols.items()}
    found = [{**base, name: size} for name, wrong in alone.items() for size in wrong[:CASES]]
    return found + _together(holds, base, symbols)[:CASES]


def _together(holds: Holds, base: Sizes, symbols: Mapping[str, Range]) -> list[Sizes]:
    """Return combinations of sizes at which the graph does not hold although it holds for each alone, nearest first."""
    drawn = random.Random(0)
    sizes = {name: bounds.sizes for name, bounds in symbols.items()}
    ends = itertools.product(*({one[0], one[-1]} for one in sizes.values())) if len(sizes) < 8 else ()
    chosen = [*ends, *(tuple(drawn.choice(one) for one in sizes.values()) for _ in range(COMBINED))]
    combined = [{**base, **dict(zip(sizes, one, strict=True))} for one in chosen]
    combined += _pairs(base, symbols)
    others = [one for one in combined if not holds(one) and all(holds({**base, n: one[n]}) for n in sizes)]
    return sorted(others, key=lambda one: _distance(one, base))


def _pairs(base: Sizes, symbols: Mapping[str, Range]) -> Iterator[Sizes]:
    """Yield the example with two other sizes: a few of one symbol, each with many of the other, an equal one included.

    Combinations drawn at random would hardly ever meet a condition such as `height != width`.
    """
    pairs = list(itertools.permutations(symbols, 2))
    many = min(MANY, 1 + PAIRS // (FEW * max(len(pairs), 1)))
    for one, other in pairs:
        for size in _spread(symbols[one].sizes, FEW):
            equal = [size] if symbols[other].allows(size) else []
            for another in (*equal, *_spread(symbols[other].sizes, many)):
                yield {**base, one: size, other: another}


def _spread(sizes: Sequence[int], count: int) -> Sequence[int]:
    """Return at most `count` sizes at even distances, and the last one."""
    step = -(-len(sizes) // count)
    return [*sizes[: len(sizes) - 1 : step], sizes[-1]]


def clashes(holds: Holds, base: Sizes, symbols: Mapping[str, Range]) -> list[Sizes]:
    """Return the nearest combinations that break a condition on several sizes, with the other sizes as in the example.

    Sizes at which a call costs far more than at the example's are left out.
    """
    found: list[Sizes] = []
    for sizes in _together(holds, base, symbols) if symbols else ():
        bare = {**base, **{name: sizes[name] for name in symbols if holds({**sizes, name: base[name]})}}
        chosen = sizes if holds(bare) else bare
        if chosen not in found and _growth(chosen, base) <= FAR:
            found.append(chosen)
    return found[:CLASHES]


def jointly(holds: Holds, base: Sizes, symbols: Mapping[str, Range]) -> dict[str, Range]:
    """Return ranges with the most combinations of sizes of these symbols, in all of which the graph holds.

    There are none if that leaves one size of a symbol, or if there are more than MOST sizes of one. Each symbol in turn
    gets the range that holds with the ends of those before it; the best order counts.
    """
    best: dict[str, Range] = {}
    if any(len(bounds.sizes) > MOST for bounds in symbols.values()):
        return best
    for order in itertools.islice(itertools.permutations(symbols), ORDERS):
        found: dict[str, Range] = {}
        for name in order:
            ends = itertools.product(*({one.sizes[0], one.sizes[-1]} for one in found.values()))
            corners = [dict(zip(found, sizes, strict=True)) for sizes in ends]
            found[name] = around(functools.partial(_holds_at, holds, corners), name, base, symbols[name])
        whole = all(len(one.sizes) > 1 for one in found.values()) and not _together(holds, base, found)
        best = found if whole and _combinations(found) > _combinations(best) else best
    return best


def kept_apart(holds: Holds, base: Sizes, symbols: Mapping[str, Range]) -> dict[str, Range]:
    """Return ranges of these symbols without any combination of sizes, as far as evaluated, that breaks a condition.

    While there is one, the range of one of its symbols ends half-way to it from the example's size: that of the symbol
    with which most combinations remain. Then each end is moved out again as far as that goes. There are none if that
    leaves one size of a symbol.
    """
    found = dict(symbols)
    for _ in range(CUTS):
        wrong = _wrong(holds, base, found)
        if wrong is None:
            return _widened(holds, base, found, symbols)
        names = [name for name in found if wrong[name] != base[name]]
        cuts = [{**found, name: _before(found[name], wrong[name], base[name])} for name in names]
        possible = [one for one in cuts if all(len(bounds.sizes) > 1 for bounds in one.values())]
        if not possible:
            return {}
        found = max(possible, key=_combinations)
    return {}


def _wrong(holds: Holds, base: Sizes, symbols: Mapping[str, Range]) -> Sizes | None:
    """Return the nearest sizes of these ranges that break a condition, of one symbol if there are such."""
    alone = ({**base, name: size} for name in symbols for size in broken(holds, name, base, symbols[name]))
    return next(itertools.chain(alone, _together(holds, base, symbols)), None)


def _before(bounds: Range, size: int, base: int) -> Range:
    """Return the part of a range on the example's side of the middle between the example's size and another one."""
    sizes = bounds.sizes
    own, other = sizes.index(base), sizes.index(size)
    middle = sizes[own + int((other - own) / 2)]
    return bounds.within(bounds.min, middle) if size > base else bounds.within(middle, bounds.max)


def _widened(holds: Holds, base: Sizes, found: dict[str, Range], symbols: Mapping[str, Range]) -> dict[str, Range]:
    """Return ranges that contain `found`, with each end moved out by bisection as far as no condition breaks."""
    for name, end in itertools.product(symbols, (0, -1)):
        bounds = symbols[name]
        sizes = bounds.sizes
        good, tried = sizes.index(found[name].sizes[end]), (0 if end == 0 else len(sizes) - 1)
        bad = tried + (1 if end else -1)
        for _ in range(BISECTED):
            if tried == good:
                break
            own = found[name]
            wider = bounds.within(sizes[tried], own.max) if end == 0 else bounds.within(own.min, sizes[tried])
            if _wrong(holds, base, {**found, name: wider}) is None:
                found, good = {**found, name: wider}, tried
            else:
                bad = tried
            tried = good + int((bad - good) / 2)
    return found


def _holds_at(holds: Holds, corners: Sequence[Sizes], sizes: Sizes) -> bool:
    return all(holds(sizes | one) for one in corners)


def _combinations(ranges: Mapping[str, Range]) -> int:
    return math.prod(len(one.sizes) for one in ranges.values()) if ranges else 0


def broken(holds: Holds, name: str, base: Sizes, bounds: Range) -> Iterator[int]:
    """Yield sizes of one symbol at which the graph does not hold, the nearest to the example's first."""
    tried = bounds.sizes[:: -(-len(bounds.sizes) // MOST)]
    near = sorted(tried, key=lambda size: abs(size - base[name]))
    return (size for size in near if not holds({**base, name: size}))


def around(holds: Holds, name: str, base: Sizes, bounds: Range) -> Range:
    """Return the range with the most sizes, in steps that divide the example's, in which the graph holds throughout."""
    size, found = base[name], Range(base[name], base[name])
    for step in (one for one in range(bounds.multiple_of, size + 1, bounds.multiple_of) if size % one == 0):
        ends = []
        for move, end in ((-step, bounds.sizes[0]), (step, bounds.sizes[-1])):
            reached = size
            while (
                (end - reached) * move > 0 and bounds.allows(reached + move) and holds({**base, name: reached + move})
            ):
                reached += move
            ends.append(reached)
        made = bounds.within(ends[0], ends[1], step)
        found = made if len(made.sizes) > len(found.sizes) else found
    return found


def _growth(sizes: Sizes, base: Sizes) -> float:
    return math.prod(max(size / max(base[name], 1), 1) for name, size in sizes.items())


def _distance(sizes: Sizes, base: Sizes) -> float:
    return sum(abs(math.log(max(size, 1) / max(base[name], 1))) for name, size in sizes.items())
