"""Compare two builds of a file and locate the differences. Nothing is executed or unpickled.

- `identical`: every byte is the same.
- `known places`: the computation is the same; only times, temporary paths, generated names or debug information
  differ.
- `numbers`: weights or constants differ.
- `differs`: anything else differs.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter import targets
from exporter.bundle import checksums, layout
from exporter.bundle.differences import _archives, _models, _tensors
from exporter.bundle.differences._finding import STATUSES, Finding, Status
from exporter.bundle.differences._json import records

_SPOILT = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)

__all__ = ["STATUSES", "Difference", "compare", "conclude", "records"]

DETAILS = 3  # maximum number of details per file


@dataclass(frozen=True)
class Difference:
    """The result for one file; `detail` names the places that differ."""

    path: str
    status: Status
    detail: str = ""


def compare(old: Path, new: Path) -> Difference:
    """Compare two builds of a file: a torch archive, an artifact that its target can parse, tensors, or any other."""
    if old.stat().st_size == new.stat().st_size and checksums.of(old) == checksums.of(new):
        return Difference(old.name, "identical")
    try:
        return conclude(old.name, _findings(old, new))
    except _SPOILT as error:
        return Difference(old.name, "differs", f"it cannot be read: {error}")


def _findings(old: Path, new: Path) -> Iterable[Finding]:
    target = layout.target_of(old.name)
    if parts := targets.facts(target).parts:
        return _artifacts(target, parts, old, new)
    if old.name.endswith(layout.CACHE):
        return _archives.caches(old, new)
    if old.name.endswith(_tensors.SUFFIX):
        return _tensors.compare(old, new)
    if zipfile.is_zipfile(old) and zipfile.is_zipfile(new):
        return _archives.compare(old, new)
    return [("differs", "the bytes differ")]


def _artifacts(target: str, parts: Callable[[Path], _models.Parts], old: Path, new: Path) -> Iterator[Finding]:
    """Compare two artifacts, or companion files of artifacts, through their target's `parts`."""
    suffixes = targets.facts(target).companions
    suffix = next((suffix for suffix in suffixes if old.name.endswith(suffix)), "")
    one, other = (path.with_name(path.name.removesuffix(suffix)) for path in (old, new))
    yield from _models.compare(one, other, parts)
    if not suffix:
        yield "known places", "places in the source, for tracebacks"


def conclude(name: str, findings: Iterable[Finding]) -> Difference:
    """Summarize the findings on a file whose bytes differ: the worst status and the places."""
    found = list(dict.fromkeys(findings)) or [("known places", "the layout of the file")]
    worst = max((status for status, _ in found), key=STATUSES.index)
    details = [detail for status, detail in found if status == worst]
    more = [f"{len(details) - DETAILS} more"] if len(details) > DETAILS else []
    return Difference(name, worst, "; ".join([*details[:DETAILS], *more]))
