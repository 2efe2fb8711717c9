"""What two builds of one file do not share, and where it lies. Nothing is run, and nothing is unpickled.

- `identical`: every byte is the same.
- `known places`: what computes is the same, the rest is named: times, temporary paths, generated names, debug
  information.
- `numbers`: weights or constants are not the same.
- `differs`: anything else.
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

DETAILS = 3  # how many are told of one file


@dataclass(frozen=True)
class Difference:
    """What was found of one file; `detail` names the places."""

    path: str
    status: Status
    detail: str = ""


def compare(old: Path, new: Path) -> Difference:
    """Two builds of one file: an archive of torch's, an artifact whose target reads it, tensors, or any other."""
    if old.stat().st_size == new.stat().st_size and checksums.of(old) == checksums.of(new):
        return Difference(old.name, "identical")
    try:
        return conclude(old.name, _findings(old, new))
    except _SPOILT as error:
        return Difference(old.name, "differs", f"it cannot be read: {error}")


def _findings(old: Path, new: Path) -> Iterable[Finding]:
    target = layout.artifacts().get(old.name, "")
    if parts := targets.facts(target).parts:
        return _artifacts(target, parts, old, new)
    if old.name.endswith(layout.CACHE):
        return _archives.caches(old, new)
    if old.name.endswith(_tensors.SUFFIX):
        return _tensors.compare(old, new)
    if zipfile.is_zipfile(old) and zipfile.is_zipfile(new):
        return _archives.compare(old, new)
    return [("differs", "its bytes are not the same")]


def _artifacts(target: str, parts: Callable[[Path], _models.Parts], old: Path, new: Path) -> Iterator[Finding]:
    """Of two artifacts, or of files beside them that belong to them."""
    suffixes = targets.facts(target).companions
    suffix = next((suffix for suffix in suffixes if old.name.endswith(suffix)), "")
    one, other = (path.with_name(path.name.removesuffix(suffix)) for path in (old, new))
    yield from _models.compare(one, other, parts)
    if not suffix:
        yield "known places", "places in the source, for tracebacks"


def conclude(name: str, findings: Iterable[Finding]) -> Difference:
    """The worst of what was found of a file whose bytes differ, with the places."""
    found = list(dict.fromkeys(findings)) or [("known places", "the layout of the file")]
    worst = max((status for status, _ in found), key=STATUSES.index)
    told = [detail for status, detail in found if status == worst]
    more = [f"{len(told) - DETAILS} more"] if len(told) > DETAILS else []
    return Difference(name, worst, "; ".join([*told[:DETAILS], *more]))
