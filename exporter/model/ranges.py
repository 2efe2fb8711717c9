"""Finding which sizes of a promised range a model accepts by trying some of them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from exporter.core.probing import ends, is_cheap, probes
from exporter.core.size_range import Range

Takes = Callable[[int], bool]
TRIED = 4  # number of other multiples that must be accepted to confirm a step


def refused(takes: Takes, base: int, bounds: Range) -> int | None:
    """Return the first rejected size among the example's neighbours and both ends, or None.

    The largest size is tried only if that is cheap.
    """
    tried = dict.fromkeys((*probes(base, bounds), *ends(base, bounds)))
    return next((size for size in tried if not takes(size)), None)


def taken(takes: Takes, base: int, bounds: Range) -> Range | None:
    """Return the accepted range with the smallest step whose tried multiples are all accepted.

    `base` must be accepted. Returns None if no step separates accepted sizes from the others.
    """
    for step in _steps(base, bounds):
        multiples = bounds.within(bounds.min, bounds.max, step)
        tried = _multiples(base, multiples)
        if tried and all(map(takes, tried)):
            return _from(takes, base, multiples)
    for step in _steps(base, bounds):  # no step accepts sizes far above the example's
        multiples = bounds.within(bounds.min, bounds.max, step)
        if any(multiples.allows(size) and takes(size) for size in (base - step, base + step)):
            ends = _furthest(takes, base, multiples, -1), _furthest(takes, base, multiples)
            found = multiples.within(*ends)
            if all(map(takes, found.sizes[:: -(-len(found.sizes) // TRIED)])):
                return found
    return None


def _steps(base: int, bounds: Range) -> Iterator[int]:
    """Yield multiples of the promised step that divide the example's size, the smallest first."""
    own = bounds.multiple_of
    return (step for step in range(own, base + 1, own) if base % step == 0)


def _multiples(base: int, bounds: Range) -> list[int]:
    """Return other sizes of the range, preferring those above the example's: a model may also have a minimum."""
    step = bounds.multiple_of
    above = list(itertools.islice(range(base + step, bounds.sizes[-1] + 1, step), TRIED - 1))
    last = bounds.sizes[-1]
    most = (last,) if is_cheap(last, base) and last > base else ()
    far = [size for size in (*most, 2 * base + step, 3 * base) if bounds.allows(size) and size not in above]
    below = range(base - step, bounds.sizes[0] - 1, -step)
    return (above + far)[:TRIED] or list(below[: TRIED - 1])


def _from(takes: Takes, base: int, bounds: Range) -> Range:
    """Return the range from the smallest accepted size; its upper end is searched only if trying it is cheap."""
    least = _furthest(takes, base, bounds, -1)
    most = bounds.sizes[-1]
    if is_cheap(most, base):
        most = _furthest(takes, base, bounds)
    return bounds.within(least, most)


def _furthest(takes: Takes, base: int, bounds: Range, side: int = 1) -> int:
    """Return the accepted size furthest from the example's on one side, by bisection."""
    sizes = bounds.sizes
    good, bad = sizes.index(base), len(sizes) if side > 0 else -1
    if takes(sizes[bad - side]):
        return sizes[bad - side]
    bad -= side
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if takes(sizes[middle]) else (good, middle)
    return sizes[good]
