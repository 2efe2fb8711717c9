"""Compare two JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from exporter.bundle.differences._finding import Finding


def records(old: Any, new: Any, known: Iterable[str], place: str = "") -> Iterator[Finding]:
    """Yield the differences between two JSON values; those under the keys `known` are in known places."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            if key in known:
                if old.get(key) != new.get(key):
                    yield "known places", key
            else:
                yield from records(old.get(key), new.get(key), known, f"{place}.{key}" if place else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from records(one, other, known, f"{place}[{index}]")
    elif old != new:
        numbers = all(isinstance(value, float) for value in (old, new))
        detail = f"{place} was {_short(old)}, is {_short(new)}"
        yield ("numbers" if numbers else "differs"), detail


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
