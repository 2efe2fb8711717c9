"""The search for the first position at which something is bad. Pure functions."""

from __future__ import annotations

from collections.abc import Callable


def first_bad(count: int, is_bad: Callable[[int], bool | None]) -> tuple[int, int]:
    """Return neighbours in -1..count-1, the first good and the second bad, with about log2(count) tests.

    -1 is taken to be good and the last position to be bad. A position of which `is_bad` returns None cannot be tested;
    the two returned then have only such positions between them.
    """
    good, bad = -1, count - 1
    unknown = set[int]()
    while left := [at for at in range(good + 1, bad) if at not in unknown]:
        middle = min(left, key=lambda at: abs(2 * at - good - bad))
        verdict = is_bad(middle)
        if verdict is None:
            unknown.add(middle)
        elif verdict:
            bad = middle
        else:
            good = middle
    return good, bad


def last_start(end: int, is_bad: Callable[[int], bool | None]) -> int:
    """Return the latest start, in -1..end-1, from which a range up to `end` is bad. The start -1 is taken to be bad."""
    _, bad = first_bad(end + 1, lambda at: is_bad(end - 1 - at))
    return end - 1 - bad
