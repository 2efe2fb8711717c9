"""Choose the sizes to run a model at: to infer its contract, for the golden's cases, and for a sweep."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from exporter.core.errors import UsageError
from exporter.core.size_range import Range, Sizes

SMALL = 16  # sizes up to this one are cheap to try, whatever the example's size
FAR = 4  # multiple of the example's size beyond which trying is too expensive


def probes(base: int, bounds: Range) -> list[int]:
    """Return up to four other sizes, near and far, which distinguish similar formulas."""
    if bounds.choices:
        return [size for size in bounds.choices if size != base]
    step = bounds.multiple_of
    at = base // step
    wanted = (at + 1, at + 2, 2 * at + 1, at + at // 2 + 3, at - 1, at - 2, at // 2)
    sizes = dict.fromkeys(step * multiple for multiple in wanted)
    return [size for size in sizes if bounds.allows(size) and size != base][:4]


def ends(base: int, bounds: Range) -> list[int]:
    """Return the smallest allowed size, and the largest one if it is cheap to try."""
    first, last = bounds.sizes[0], bounds.sizes[-1]
    return [first, last] if is_cheap(last, base) else [first]


def is_cheap(size: int, base: int) -> bool:
    """Return whether trying this size is cheap: it is at most FAR times the example's, or small."""
    return size <= max(FAR * base, SMALL)


def capture_sizes(base: Sizes, symbols: Mapping[str, Range]) -> Sizes:
    """Return sizes to capture at: none is 1, which torch.export would fix, and no two are equal: it might unify them.

    The first multiple of a step is avoided too if there is another one, because dividing it by the step yields 1.
    """
    sizes = dict(base)
    taken: set[int] = set()
    for name, bounds in symbols.items():
        if bounds.choices:
            continue
        allowed, step = bounds.sizes, bounds.multiple_of
        wanted = max(sizes[name], 2 * step)
        while wanted in taken and wanted < allowed[-1]:
            wanted += step
        sizes[name] = min(wanted, allowed[-1])
        taken.add(sizes[name])
    return sizes


def sweep_points(base: Sizes, symbols: Mapping[str, Range], sweep: Mapping[str, Sequence[int]]) -> dict[str, Sizes]:
    """Return every combination of the sizes to time, by the name of its golden case, with the example first.

    Raises UsageError for a size that the artifacts do not promise.
    """
    for name, sizes in sweep.items():
        if name not in symbols:
            raise UsageError(f"{name} is not dynamic, so it cannot be swept over {len(sizes)} sizes", "see --dynamic")
        for size in sizes:
            if not symbols[name].allows(size):
                more = f"--size {name}={min(sizes)}..{max(sizes)}"
                if symbols[name].multiple_of > 1:
                    more = f"--size {name}={symbols[name].min}..{max(*sizes, symbols[name].max)}"
                if symbols[name].choices:
                    more = f"--specialize {name}={','.join(map(str, sorted({*sizes, *symbols[name].choices})))}"
                remedy = f"give {more}"
                raise UsageError(f"{size} is outside the range of {name}, {symbols[name]}", remedy)
    points = [dict(zip(sweep, sizes, strict=True)) for sizes in itertools.product(*sweep.values())] if sweep else []
    own = {name: base[name] for name in sweep}
    return {describe({**base, **point}): point for point in (own, *points)} if sweep else {}


def entry_sizes(given: Sequence[str]) -> tuple[Sizes, ...]:
    """Return the sizes of each entry, for texts such as `batch=1,8`: every combination of several.

    Raises UsageError for a malformed text, or a name or number that occurs twice.
    """
    asked: dict[str, list[int]] = {}
    for text in given:
        name, _, numbers = text.partition("=")
        try:
            sizes = [int(number) for number in numbers.split(",")]
        except ValueError:
            sizes = []
        if not name or not sizes or min(sizes) < 1:
            raise UsageError(f"--entries {text!r} does not name sizes", "give SIZE=N or SIZE=N,N, such as batch=1,8")
        if name in asked or len(set(sizes)) < len(sizes):
            raise UsageError(f"--entries names {name if name in asked else text} twice", "give each name and size once")
        asked[name] = sizes
    names = sorted(asked)
    return tuple(dict(zip(names, s, strict=True)) for s in itertools.product(*(asked[n] for n in names)) if s)


def entry_points(entries: Iterable[Sizes], base: Sizes, symbols: Mapping[str, Range]) -> list[Sizes]:
    """Return the sizes at which each entry is checked: its other sizes alone at both ends and odd, and all odd."""
    points = []
    for own in entries:
        others = {name: bounds for name, bounds in symbols.items() if name not in own}
        points.append(own)
        for name, bounds in others.items():
            points += [own | {name: size} for size in (bounds.sizes[0], _odd(base[name], bounds), bounds.sizes[-1])]
        points.append(own | {name: _odd(base[name], bounds) for name, bounds in others.items()})
    return points


def check_entries(entries: Iterable[Sizes], symbols: Mapping[str, Range]) -> None:
    """Raise UsageError for an entry with a size that is not dynamic, or outside its range."""
    for name, size in (pair for sizes in entries for pair in sizes.items()):
        if name not in symbols:
            has = f"dynamic sizes: {', '.join(symbols)}" if symbols else "no size is dynamic: see --dynamic"
            raise UsageError(f"--entries names {name}, which is not dynamic", has)
        if not symbols[name].allows(size):
            raise UsageError(
                f"--entries asks for {name} = {size}, which is outside the range of {name}, {symbols[name]}",
                f"choose another size, or a range that includes it: --size {name}=MIN..MAX; in a release file, ranges",
            )


def probe_plan(base: Sizes, symbols: Mapping[str, Range], points: Iterable[Sizes] = ()) -> list[tuple[Sizes, int]]:
    """Return (sizes, seed) of the golden's cases, starting with the example at two seeds.

    Then each symbol alone takes its minimum, 2 and 3 steps, an odd number of steps, and its maximum; then all symbols
    together take an odd number of steps. The points of a sweep come last.
    """
    plan = [(base, 0), (base, 1)]
    for name, bounds in symbols.items():
        step, last = bounds.multiple_of, bounds.sizes[-1]
        for value in bounds.choices or (bounds.sizes[0], 2 * step, 3 * step, _odd(base[name], bounds), last):
            if bounds.allows(value):
                plan.append(({**base, name: value}, 0))
    together = {name: nearest((2 * i + 3) * b.multiple_of, b) for i, (name, b) in enumerate(symbols.items())}
    plan.append(({**base, **together}, 0))
    plan += [({**base, **point}, 0) for point in points]
    unique = {(describe(sizes), seed): (sizes, seed) for sizes, seed in plan}
    return list(unique.values())


def equal_sizes(base: Sizes, symbols: Mapping[str, Range]) -> list[Sizes]:
    """Return sizes at which as many symbols as possible have the same one, near the example's; then those of the rest.

    Of symbols that share no size with another one, and of those that are equal in the example, there are none.
    """
    found: list[Sizes] = []
    left = dict(symbols)
    while len(left) > 1:
        tried = {
            size for name, r in left.items() for size in (base[name], *probes(base[name], r), *ends(base[name], r))
        }
        near = sorted(tried, key=lambda size: (size < 2, sum(abs(size - base[name]) for name in left), size))
        equal = max(([name for name, r in left.items() if r.allows(size)] for size in near), key=len)
        size = next(size for size in near if all(left[name].allows(size) for name in equal))
        made = {**base, **dict.fromkeys(equal, size)}
        if len(equal) > 1 and len({base[name] for name in equal}) > 1:
            found.append(made)
        left = {name: bounds for name, bounds in left.items() if name not in equal}
    return found


def nearest(size: int, bounds: Range) -> int:
    """Return the allowed size that is nearest to `size`."""
    if bounds.choices:
        return min(bounds.choices, key=lambda choice: abs(choice - size))
    step, allowed = bounds.multiple_of, bounds.sizes
    below = size // step * step
    return max(allowed[0], min(below if 2 * (size - below) <= step else below + step, allowed[-1]))


def _odd(size: int, bounds: Range) -> int:
    """Return an odd multiple of the step above the example's size, or the largest allowed size if there is none."""
    multiple = size // bounds.multiple_of
    return min((multiple + 1 + multiple % 2) * bounds.multiple_of, bounds.sizes[-1])


def describe(sizes: Sizes) -> str:
    """Return the sizes as text: `batch=2 sequence=14`."""
    return " ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"


def choose_sizes(
    base: Sizes,
    symbols: Mapping[str, Range],
    sizes: Sizes,
    ranges: Mapping[str, Range],
    dynamic: str = "all",
) -> tuple[Sizes, dict[str, Range]]:
    """Return the example's sizes and the symbols' ranges, from the recipe and the user's options.

    `sizes` and `ranges` replace the recipe's; `dynamic` is all, none, or the names of the sizes that stay dynamic. An
    example size outside a new range moves into it. A range of one size fixes it. Raises UsageError for an unknown name
    or a size outside its range.
    """
    wanted = [] if dynamic in ("all", "none") else [name.strip() for name in dynamic.split(",")]
    for name in (*sizes, *ranges, *wanted):
        if name not in base:
            raise UsageError(f"inputs() takes no {name}", f"it takes {', '.join(base) or 'no sizes'}")
    if len([name for name, bounds in ranges.items() if bounds.choices]) > 1:
        raise UsageError("only one size can be specialised", "give --specialize once")
    symbols = {**symbols, **ranges}
    for name in wanted:
        if name not in symbols:
            raise UsageError(f"{name} cannot be dynamic: it has no range", f"give --size {name}=MIN..MAX")
    base = {n: nearest(s, ranges[n]) if n in ranges else s for n, s in base.items()} | sizes
    check_sizes(base, symbols)
    varying = {n: bounds for n, bounds in symbols.items() if len(bounds.sizes) > 1 or bounds.choices}
    return base, {n: bounds for n, bounds in varying.items() if dynamic == "all" or n in wanted or bounds.choices}


def check_sizes(sizes: Sizes, symbols: Mapping[str, Range]) -> None:
    """Raise UsageError for a size outside its range."""
    for name, size in sizes.items():
        bounds = symbols.get(name, Range(1, 2**31))
        if not bounds.allows(size):
            raise UsageError(
                f"{name} is {size}, which is outside its range, {bounds}",
                "choose another size, or a range that includes it: "
                f"--size {name}=N or --size {name}=MIN..MAX[..STEP]; in a release file, sizes or ranges",
            )
