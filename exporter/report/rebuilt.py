"""Render the report of `exporter check --rebuild`: a line for each file, notes and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from exporter.bundle.differences import STATUSES
from exporter.core import source_lines
from exporter.core.json_codec import to_json
from exporter.runs.rebuild import Rebuilt


def render(found: Rebuilt, as_json: bool) -> str:
    """Render as text or JSON, with a newline at the end."""
    return (to_json(found) if as_json else "\n".join(map(source_lines.printable, _lines(found)))) + "\n"


def _lines(found: Rebuilt) -> Iterator[str]:
    width = max(len(file.path) for file in found.files)
    for file in found.files:
        yield f"{file.path:{width}}  {file.status}" + (f": {file.detail}" if file.detail else "")
    yield from found.notes
    counts = Counter(file.status for file in found.files)
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    verdict = "matches what its recipe builds" if found.same else "differs from what its recipe builds here"
    yield f"{found.bundle} {verdict}: {summary}."
