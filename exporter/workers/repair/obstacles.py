"""What torch.export says against a model: compare two of its errors, and describe the sizes that it limits."""

from __future__ import annotations

import re

from exporter.core import source_lines
from exporter.workers.repair.records import Attempt, Obstacle
from exporter.workers.repair.source import Source

_NUMBERS = re.compile(r"\d+")
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return bool(_INSTALLED.search(file))


def of_limits(found: Attempt) -> Obstacle:
    """Return the sizes that torch.export fixed or narrowed as an obstacle."""
    limits = [*map(str, found.limits)]
    assert found.contract is not None
    symbols = found.contract.symbols
    limits += [one.told(symbols[one.symbol]) for one in found.narrowings if one.symbol in symbols]
    text = "; ".join(limits)
    return Obstacle(source_lines.without(text), text, "", source_lines.place(text), "", ())


def same(one: Obstacle | None, sources: dict[str, Source], other: Obstacle, others: dict[str, Source]) -> bool:
    """Return whether two obstacles are the same message at the same source text."""
    if one is None or one.cause != other.cause:
        return False
    said = [_NUMBERS.sub("", each.message.split("\n")[0]) for each in (one, other)]
    return said[0] == said[1] and _line(one, sources) == _line(other, others)


def _line(obstacle: Obstacle, sources: dict[str, Source]) -> str:
    frame = obstacle.frames[-1] if obstacle.frames else None
    if frame is None or frame.file not in sources:
        return ""
    source = sources[frame.file]
    return source.slice(source.line_start(frame.line), source.line_end(frame.end_line)).strip()
