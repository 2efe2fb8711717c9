"""The sizes that a symbol may have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exporter.core.json_schema import described

Sizes = dict[str, int]  # by symbol


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a symbol, and the step that its size is a multiple of; or the sizes that alone it may have.

    Each of those `choices` has an entry of its own in the artifact.
    """

    min: int = described("Smallest size.", minimum=1)
    max: int = described("Largest size.", minimum=1)
    choices: tuple[int, ...] = described(
        "The sizes it may have, one entry of the artifact for each; empty where it may have any between the bounds.",
        (),
        minimum=1,
    )
    multiple_of: int = described(
        "The step: only multiples of it, between the bounds, are allowed. 1 where every size is.", 1, minimum=1
    )

    def __post_init__(self) -> None:
        """ValueError for bounds or a step that leave no size, or have more than 64 bits."""
        if any(not -(1 << 63) <= number < 1 << 63 for number in (self.min, self.max, self.multiple_of, *self.choices)):
            raise ValueError("a range has more than 64 bits")
        if self.multiple_of < 1:
            raise ValueError(f"a step of {self.multiple_of} is none")
        if not self.sizes:
            of = f" multiple of {self.multiple_of}" if self.multiple_of > 1 else " size"
            raise ValueError(f"no{of} lies in {self.min} to {self.max}")

    @property
    def sizes(self) -> range | tuple[int, ...]:
        """Every size that the symbol may have, the smallest first."""
        step = self.multiple_of
        return self.choices or range(-(-self.min // step) * step, self.max + 1, step)

    @property
    def written(self) -> tuple[int, ...]:
        """As a recipe writes it: (min, max), or (min, max, step)."""
        return (self.min, self.max) if self.multiple_of == 1 else (self.min, self.max, self.multiple_of)

    def within(self, low: int, high: int, step: int = 1) -> Range:
        """What is left of it where sizes go from `low` to `high` in steps. ValueError when nothing is."""
        step = math.lcm(step, self.multiple_of)
        left = Range(max(low, self.min), min(high, self.max), multiple_of=step).sizes
        return Range(left[0], left[-1], multiple_of=step)

    def allows(self, size: int) -> bool:
        """Whether the symbol may have this size."""
        return size in self.sizes

    def allows_any(self, sizes: range) -> bool:
        """Whether the symbol may have one of these sizes, which follow each other; told without looking at each."""
        if self.choices:
            return any(choice in sizes for choice in self.choices)
        low, high = max(self.min, sizes.start), min(self.max, sizes.stop - 1)
        return -(-low // self.multiple_of) * self.multiple_of <= high

    def __str__(self) -> str:
        """`1 to 64`, `32 to 512, multiples of 2`, or `1, 8 or 32`."""
        if not self.choices:
            step = f", multiples of {self.multiple_of}" if self.multiple_of > 1 else ""
            return f"{self.min} to {self.max}{step}"
        *others, last = map(str, self.choices)
        return f"{', '.join(others)} or {last}" if others else last
