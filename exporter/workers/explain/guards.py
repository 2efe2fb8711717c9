"""Record the conditions on sizes that the model's code evaluates under torch.export."""

from __future__ import annotations

import logging
import re

from exporter.core import source_lines
from exporter.model import fixed_dims

_ADDED = re.compile(r"eval (.+?) \[guard added\]")


class Guards(logging.Filter):
    """Record each condition on sizes with its line. This is a filter because filters run before any handler."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Add (condition, line) to `found` and keep the record."""
        if match := _ADDED.match(record.getMessage()):
            self.found.append((match[1], source_lines.here()))
        return True

    def __enter__(self) -> Guards:
        logging.getLogger(fixed_dims.LOGGER).addFilter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        logging.getLogger(fixed_dims.LOGGER).removeFilter(self)
