"""Dimensions named by the user, such as `batch=state:1` or `samples=x:1:256..16000`. Never imports torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from exporter.core.errors import UsageError
from exporter.core.limits import LARGEST_SIZE
from exporter.core.size_range import Range

FORM = "NAME=INPUT:AXIS[:MIN..MAX]"
LARGEST_BATCH = 64  # of a batch without a given bound
LARGEST = 512  # of any other size
_WRITTEN = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<input>.+?):(?P<axis>\d+)(?::(?P<low>\d+)\.\.(?P<high>\d+))?")


@dataclass(frozen=True)
class NamedDim:
    """One dimension of one input, named as the size `name`, optionally with a range."""

    name: str
    input: str
    axis: int
    bounds: Range | None = None

    def __str__(self) -> str:
        bounds = f":{self.bounds.min}..{self.bounds.max}" if self.bounds else ""
        return f"{self.name}={self.input}:{self.axis}{bounds}"


def parse(text: str) -> NamedDim:
    """Parse a dimension in the form FORM. Raises UsageError for anything else."""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not {FORM}", "write it as batch=x:0 or samples=x:1:256..16000")
    low, high = (int(found[bound]) if found[bound] else 0 for bound in ("low", "high"))
    if high > LARGEST_SIZE:
        raise UsageError(f"{text!r} has a size that is too large", f"give at most {LARGEST_SIZE}")
    if found["low"] and not 1 <= low <= high:
        raise UsageError(f"{text!r} has an empty range; sizes start at 1", "write MIN..MAX")
    bounds = Range(low, high) if found["low"] else None
    return NamedDim(found["name"], found["input"], int(found["axis"]), bounds)


def parse_all(texts: Sequence[str]) -> tuple[NamedDim, ...]:
    """Parse several dimensions. Raises UsageError if a dimension has two names or a name has two ranges."""
    dims = tuple(map(parse, texts))
    names: dict[tuple[str, int], str] = {}
    ranges: dict[str, Range] = {}
    for dim in dims:
        if names.setdefault((dim.input, dim.axis), dim.name) != dim.name:
            raise UsageError(f"dimension {dim.axis} of {dim.input} has two names", "give it one")
        if dim.bounds and ranges.setdefault(dim.name, dim.bounds) != dim.bounds:
            raise UsageError(f"{dim.name} has two ranges, {ranges[dim.name]} and {dim.bounds}", "give it one")
    return dims


def bounds(dims: Sequence[NamedDim], name: str, example: int) -> tuple[int, int]:
    """Return the range of a name: the given one, or 1 to the usual maximum or the example's size if that is larger."""
    given = next((dim.bounds for dim in dims if dim.name == name and dim.bounds), None)
    if given is not None:
        return given.min, given.max
    return 1, max(LARGEST_BATCH if name == "batch" else LARGEST, example)
