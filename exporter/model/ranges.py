"""Which sizes of a promised range a model takes: found by trying some. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from exporter.core.probing import probes
from exporter.core.size_range import Range

Takes = Callable[[int], bool]
TRIED = 4  # other multiples that a step is believed by
SMALL = 16  # a size up to this one is cheap, whatever the example's is
FAR = 4  # times the example's size: beyond, a try may cost more than it tells


def refused(takes: Takes, base: int, bounds: Range) -> int | None:
    """The first size that is not taken, of the example's neighbours and the ends; None where all are.

    The largest counts where it is no more than FAR times the example's, or small by itself.
    """
    last = bounds.sizes[-1]
    tried = dict.fromkeys((*probes(base, bounds), bounds.sizes[0], *([last] if _is_near(last, base) else [])))
    return next((size for size in tried if not takes(size)), None)


def taken(takes: Takes, base: int, bounds: Range) -> Range | None:
    """The range that is taken, with its step: the smallest step of which every multiple that is tried is taken.

    `base` is taken. None where no step tells the sizes that are taken from the others.
    """
    for step in _steps(base, bounds):
        multiples = bounds.within(bounds.min, bounds.max, step)
        tried = _multiples(base, multiples)
        if tried and all(map(takes, tried)):
            return _from(takes, base, multiples)
    for step in _steps(base, bounds):  # no size far above is taken, whatever the step
        multiples = bounds.within(bounds.min, bounds.max, step)
        if any(multiples.allows(size) and takes(size) for size in (base - step, base + step)):
            ends = _furthest(takes, base, multiples, -1), _furthest(takes, base, multiples)
            found = multiples.within(*ends)
            if all(map(takes, found.sizes[:: -(-len(found.sizes) // TRIED)])):
                return found
    return None


def _steps(base: int, bounds: Range) -> Iterator[int]:
    """Steps that the example's size is a multiple of, and the promised step with it, the smallest first."""
    own = bounds.multiple_of
    return (step for step in range(own, base + 1, own) if base % step == 0)


def _multiples(base: int, bounds: Range) -> list[int]:
    """Other sizes of the range, those above the example's first: below, a model may have a least size too."""
    step = bounds.multiple_of
    above = list(itertools.islice(range(base + step, bounds.sizes[-1] + 1, step), TRIED - 1))
    last = bounds.sizes[-1]
    ends = (last,) if _is_near(last, base) and last > base else ()
    far = [size for size in (*ends, 2 * base + step, 3 * base) if bounds.allows(size) and size not in above]
    below = range(base - step, bounds.sizes[0] - 1, -step)
    return (above + far)[:TRIED] or list(below[: TRIED - 1])


def _is_near(size: int, base: int) -> bool:
    """Whether a try at this size costs little."""
    return size <= max(FAR * base, SMALL)


def _from(takes: Takes, base: int, bounds: Range) -> Range:
    """The range from the least size on that is taken; up to the most where trying that costs little."""
    least = _furthest(takes, base, bounds, -1)
    most = bounds.sizes[-1]
    if _is_near(most, base):
        most = _furthest(takes, base, bounds)
    return bounds.within(least, most)


def _furthest(takes: Takes, base: int, bounds: Range, side: int = 1) -> int:
    """The size furthest from the example's, above it or below, up to which sizes are taken."""
    sizes = bounds.sizes
    good, bad = sizes.index(base), len(sizes) if side > 0 else -1
    if takes(sizes[bad - side]):
        return sizes[bad - side]
    bad -= side
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if takes(sizes[middle]) else (good, middle)
    return sizes[good]
