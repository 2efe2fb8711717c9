"""Infer how dimensions depend on sizes, by probing a function at several sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from exporter.core.contract_records import Dim, TensorSpec
from exporter.core.errors import ContractError, ExportError, RecipeError
from exporter.core.expressions import Seen, doubt, fit
from exporter.core.probing import describe, ends, is_cheap, nearest, probes
from exporter.core.size_range import Range, Sizes

Probe = Callable[[Sizes], tuple[TensorSpec, ...]]
Observed = Sequence[tuple[Sizes, tuple[TensorSpec, ...]]]
MORE_PROBES = 24  # maximum number of probes that verify quotients
SMALLEST = 64  # minimum number of a size's smallest values among which these are chosen


def infer_shapes(observed: Observed, symbols: Mapping[str, Range]) -> tuple[TensorSpec, ...]:
    """Infer which dimension depends on which symbol, from the same tensors observed at several sizes.

    A dimension that never changed is fixed. One that changed with a single symbol is that symbol or, if one fits, an
    expression of it. One that changed with several is an expression of their sum if it fits also where all of them
    differ from the first observation. Any other is None. Raises ContractError if names or ranks differ between the
    observations.
    """
    return tuple(
        dataclasses.replace(spec, shape=tuple(_infer_dim(seen, symbols) for seen in dims))
        for spec, dims in _dims(observed)
    )


def _dims(
    observed: Observed,
) -> Iterator[tuple[TensorSpec, list[list[tuple[Sizes, int]]]]]:
    """Yield each tensor with what was observed of each of its dimensions. Raises ContractError like `infer_shapes`."""
    first = observed[0][1]
    for sizes, specs in observed:
        if [s.name for s in specs] != [s.name for s in first] or [len(s.shape) for s in specs] != [
            len(s.shape) for s in first
        ]:
            raise ContractError(
                f"the tensors at {describe(sizes)} differ in name or rank from those at {describe(observed[0][0])}",
                "perhaps squeeze() without a dimension drops one of size 1: name the dimension, or promise only sizes "
                "that agree (--size NAME=MIN..MAX)",
            )
    for i, spec in enumerate(first):
        shapes = [(at, specs[i].sizes) for at, specs in observed]
        yield spec, [[(at, shape[d]) for at, shape in shapes] for d in range(len(spec.shape))]


def _infer_dim(seen: Seen, symbols: Mapping[str, Range]) -> Dim:
    """Infer one dimension from observations in which one size at a time differs from the first, or several do."""
    base, size = seen[0]
    if len({other for _, other in seen}) == 1:
        return size
    moving = _moving(seen, symbols)
    if len(moving) == 1 and all(sizes[moving[0]] == other for sizes, other in seen):
        return moving[0]
    together = any(all(sizes[name] != base[name] for name in moving) for sizes, _ in seen)
    found = fit(moving, seen) if moving and together else None
    return str(found) if found else None


def _moving(seen: Seen, symbols: Iterable[str]) -> list[str]:
    """Return the symbols that change the dimension alone."""
    base, size = seen[0]
    alone = [(names[0], other) for sizes, other in seen if len(names := _moved(sizes, base, symbols)) == 1]
    return sorted({name for name, other in alone if other != size})


def _moved(sizes: Mapping[str, int], base: Mapping[str, int], symbols: Iterable[str]) -> list[str]:
    return [name for name in symbols if sizes[name] != base[name]]


def probe_shapes(
    probe: Probe, base: Sizes, symbols: Mapping[str, Range], to_the_ends: bool = False
) -> tuple[TensorSpec, ...]:
    """Return the specs of the tensors that `probe` returns, by changing one size at a time.

    Each size is also probed at its smallest value, and at its largest if that is cheap or with `to_the_ends`.
    A quotient such as `(n-10)//20` is probed until no other offset fits, and at three quarters of the example's size.
    Sizes are changed together only if a dimension looks like a sum of them. At these further sizes, the probe may fail,
    but not return tensors of other names or ranks (ContractError).
    """
    observed = [(base, probe(base))]
    for name, bounds in symbols.items():
        sizes = probes(base[name], bounds) + ([bounds.sizes[0], bounds.sizes[-1]] if to_the_ends else [])
        observed += [(moved, probe(moved)) for size in dict.fromkeys(sizes) for moved in ({**base, name: size},)]
    refused: list[Sizes] = []
    for _ in range(MORE_PROBES):
        if (doubtful := next(_doubtful(observed, symbols, refused), None)) is None:
            break
        try:
            observed.append((doubtful, probe(doubtful)))
        except (ExportError, RecipeError):
            refused.append(doubtful)
    found = infer_shapes(observed, symbols)
    try:
        together = [(sizes, probe(sizes)) for sizes in _joint_sizes(observed, symbols)]
        return infer_shapes([*observed, *together], symbols) if together else found
    except (ContractError, ExportError, RecipeError):  # these sizes are allowed only alone
        return found


def _doubtful(observed: Observed, symbols: Mapping[str, Range], refused: Sequence[Sizes]) -> Iterator[Sizes]:
    """Yield further sizes to observe: cheap ends of ranges, and those that verify quotients."""
    base, known = observed[0][0], [*(sizes for sizes, _ in observed), *refused]
    wanted = [(name, size) for name, bounds in symbols.items() for size in ends(base[name], bounds)]
    for seen in (dim for _, dims in _dims(observed) for dim in dims):
        moving = _moving(seen, symbols)
        if len(moving) == 1 and (found := fit(moving, seen)) and found.divisor > 1:
            (name,) = moving
            cheap = [s for s in _some(base[name], symbols[name], found.divisor) if {**base, name: s} not in refused]
            wanted += [(name, doubt(name, seen, cheap) or base[name])]
            wanted += [(name, nearest(3 * base[name] // 4, symbols[name]))]
    yield from (one for name, size in wanted if (one := {**base, name: size}) not in known)


def _some(base: int, bounds: Range, divisor: int) -> list[int]:
    """Return cheap sizes: the smallest, enough to see where a quotient changes, and some larger ones."""
    sizes, few = bounds.sizes, max(divisor, SMALLEST)
    chosen = (*sizes[:few], *sizes[few :: len(sizes) // SMALLEST + 1])
    return [size for size in chosen if is_cheap(size, base)]


def _joint_sizes(observed: Observed, symbols: Mapping[str, Range]) -> Iterator[Sizes]:
    """Yield sizes at which to verify the sums of sizes that fit the observations; none if no sum fits."""
    seen = [dim for _, dims in _dims(observed) for dim in dims]
    sums = [e for dim in seen if len(names := _moving(dim, symbols)) > 1 and (e := fit(names, dim))]
    base, names = observed[0][0], sorted({name for one in sums for name in one.names})
    if not names:
        return
    others = {name: probes(base[name], symbols[name]) for name in names}
    both = (
        {name: sizes[(i + shift) % len(sizes)] for i, (name, sizes) in enumerate(others.items())} for shift in (0, 1)
    )
    unique = {describe(sizes): sizes for sizes in both}
    yield from ({**base, **sizes} for sizes in unique.values())
