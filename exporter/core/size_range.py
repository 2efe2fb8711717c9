"""The sizes that a symbol may have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exporter.core.json_schema import described
from exporter.core.limits import LARGEST_SIZE

Sizes = dict[str, int]  # by symbol


@dataclass(frozen=True)
class Range:
    """The sizes of a symbol: the multiples of a step between inclusive bounds, or a list of choices.

    Each of the `choices` has its own entry in the artifact.
    """

    min: int = described("Smallest size.", minimum=1)
    max: int = described("Largest size.", minimum=1)
    choices: tuple[int, ...] = described(
        "The only allowed sizes, each with its own entry in the artifact; empty if any size in the bounds is allowed.",
        (),
        minimum=1,
    )
    multiple_of: int = described(
        "The step: only multiples of it between the bounds are allowed. 1 allows every size.", 1, minimum=1
    )

    def __post_init__(self) -> None:
        """Raise ValueError if the bounds and the step allow no size, or a number has more than 64 bits."""
        if any(
            not -LARGEST_SIZE <= number <= LARGEST_SIZE
            for number in (self.min, self.max, self.multiple_of, *self.choices)
        ):
            raise ValueError("a number in a range has more than 64 bits")
        if self.multiple_of < 1:
            raise ValueError(f"a step must be positive, not {self.multiple_of}")
        if not self.sizes:
            what = f"multiple of {self.multiple_of}" if self.multiple_of > 1 else "size"
            raise ValueError(f"there is no {what} in {self.min} to {self.max}")

    @property
    def sizes(self) -> range | tuple[int, ...]:
        """All allowed sizes in ascending order."""
        step = self.multiple_of
        return self.choices or range(-(-self.min // step) * step, self.max + 1, step)

    def covers(self, other: Range) -> bool:
        """Return whether every size of another range is allowed."""
        if self.choices or other.choices:
            few = other.choices or other.sizes[: len(self.choices) + 1]
            return all(map(self.allows, few))
        ends = self.allows(other.sizes[0]) and self.allows(other.sizes[-1])
        return ends and (len(other.sizes) == 1 or other.multiple_of % self.multiple_of == 0)

    @property
    def written(self) -> tuple[int, ...]:
        """The form in a recipe: (min, max) or (min, max, step)."""
        return (self.min, self.max) if self.multiple_of == 1 else (self.min, self.max, self.multiple_of)

    def within(self, low: int, high: int, step: int = 1) -> Range:
        """Return the multiples of `step` in the range from `low` to `high`. Raises ValueError if there are none."""
        step = math.lcm(step, self.multiple_of)
        left = Range(max(low, self.min), min(high, self.max), multiple_of=step).sizes
        return Range(left[0], left[-1], multiple_of=step)

    def allows(self, size: int) -> bool:
        """Return whether this size is allowed."""
        return size in self.sizes

    def allows_any(self, sizes: range) -> bool:
        """Return whether any of these consecutive sizes is allowed, without iterating over them."""
        if self.choices:
            return any(choice in sizes for choice in self.choices)
        low, high = max(self.min, sizes.start), min(self.max, sizes.stop - 1)
        return -(-low // self.multiple_of) * self.multiple_of <= high

    def __str__(self) -> str:
        """Return `1 to 64`, `32 to 512, multiples of 2`, or `1, 8 or 32`."""
        if not self.choices:
            step = f", multiples of {self.multiple_of}" if self.multiple_of > 1 else ""
            return f"{self.min} to {self.max}{step}"
        *others, last = map(str, self.choices)
        return f"{', '.join(others)} or {last}" if others else last
