"""Where torch.export gives up a dynamic dimension: it says so only in its log, and never says on which line."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter import places
from exporter.expressions import Expression
from exporter.records import Contract

LOGGER = "torch.fx.experimental.symbolic_shapes"
_CREATED = re.compile(r"create_symbol (\w+) = \d+ for L\['(?:\w+)'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
_FIXED = re.compile(r"set_replacement (\w+) = (\d+) ")


@dataclass
class Specializations(logging.Handler):
    """The dimensions that were fixed while it listened: (input, axis) to (size, `file:line`).

    Lines count that a function called `within` led to: further out is whoever called exporter.
    """

    within: str
    dimensions: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)
    _symbols: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Hear everything."""
        super().__init__(logging.INFO)

    def __hash__(self) -> int:
        """By identity: logging keeps handlers in sets."""
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember which symbol stands for which dimension, and where one became a number."""
        message = record.getMessage()
        if match := _CREATED.match(message):
            self._symbols[match[1]] = (int(match[2]), int(match[3]))
        elif (match := _FIXED.match(message)) and match[1] in self._symbols:
            self.dimensions.setdefault(self._symbols[match[1]], (int(match[2]), places.here(self.within)))

    def symbols(self, contract: Contract) -> set[str]:
        """The symbols that were fixed."""
        dims = [contract.inputs[index].shape[axis] for index, axis in self.dimensions]
        return {Expression.parse(dim).name for dim in dims if isinstance(dim, str)}

    def describe(self, contract: Contract) -> list[str]:
        """`torch.export fixed sequence at 7 (model.py:12)` for each dimension that was promised to move."""
        said: dict[str, None] = {}
        for (index, axis), (size, place) in self.dimensions.items():
            dim = contract.inputs[index].shape[axis]
            if isinstance(dim, str):
                said[f"torch.export fixed {dim} at {size}{f' ({place})' if place else ''}"] = None
        return list(said)


@contextlib.contextmanager
def watch(within: str) -> Iterator[Specializations]:
    """Listen to torch.export's log, without printing it."""
    logger, found = logging.getLogger(LOGGER), Specializations(within)
    level, propagate = logger.level, logger.propagate
    others = list(logger.handlers)
    try:
        logger.handlers[:] = [found]
        logger.setLevel(logging.INFO)
        logger.propagate = False
        yield found
    finally:
        logger.handlers[:] = others
        logger.setLevel(level)
        logger.propagate = propagate
