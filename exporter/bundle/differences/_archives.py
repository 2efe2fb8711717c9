"""Compare two torch archives member by member."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from exporter.bundle.differences import _generated, _libraries, _numbers, _storages
from exporter.bundle.differences._finding import Finding
from exporter.bundle.differences._json import records

SLACK = 1 << 24  # a member more than this many bytes larger than twice its counterpart is not read


def compare(old: Any, new: Any, prefix: str = "") -> Iterator[Finding]:
    """Compare two zip archives, given as paths or file objects."""
    with zipfile.ZipFile(old) as one, zipfile.ZipFile(new) as other:
        names, twins = one.namelist(), other.namelist()
        if len(set(names)) < len(names):
            yield "differs", f"{prefix}a member occurs twice"
        pairs = _pairs(names, twins)
        for name in (*(n for n in names if n not in pairs), *(n for n in twins if n not in pairs.values())):
            yield "differs", f"{prefix}{name} is in only one of them"
        if [pairs.get(name) for name in names] != twins:
            yield "known places", "the order of the members"
        types = _storages.types(other)
        for name, twin in pairs.items():
            before, after = one.getinfo(name), other.getinfo(twin)
            if name != twin:
                yield "known places", "generated names"
            if before.date_time != after.date_time:
                yield "known places", "times of the members"
            if before.file_size > 2 * after.file_size + SLACK:
                yield "differs", f"{prefix}{twin} had {before.file_size} bytes, has {after.file_size}"
            elif (then := one.read(before)) != (now := other.read(after)):
                yield from _member(f"{prefix}{twin}", then, now, types.get(twin))


def _pairs(names: Sequence[str], twins: Sequence[str]) -> dict[str, str]:
    """Match members by name, or else by name without its generated part."""
    pairs = {name: name for name in names if name in twins}
    waiting: dict[bytes, list[str]] = {}
    for twin in twins:
        if twin not in pairs:
            waiting.setdefault(_generated.NAME.sub(b"", twin.encode()), []).append(twin)
    for name in names:
        if name not in pairs and (alike := waiting.get(_generated.NAME.sub(b"", name.encode()))):
            pairs[name] = alike.pop(0)
    return pairs


def _member(name: str, old: bytes, new: bytes, kind: str | None) -> Iterator[Finding]:
    """Compare two versions of a member that differ."""
    if name.endswith("/.data/serialization_id"):
        yield "known places", "torch's hash of the members"
    elif name.endswith(".debug_pkl"):
        yield "known places", "places in the source, for tracebacks"
    elif kind is not None:
        yield _numbers.compare(name, kind, old, new)
    elif name.endswith(".cpp"):
        yield from _generated.compare(name, old, new)
    elif name.endswith(".so"):
        yield from _libraries.compare(name, old, new)
    elif name.endswith(".blob"):
        yield _numbers.weights(name, old, new)
    elif name.endswith("/models/model.json"):
        yield from _graphs(name, old, new)
    elif zipfile.is_zipfile(io.BytesIO(new)):
        yield from compare(io.BytesIO(old), io.BytesIO(new), f"{name}: ")
    else:
        yield "differs", name


def _graphs(name: str, old: bytes, new: bytes) -> Iterator[Finding]:
    """Compare two torch.export graphs, ignoring the source locations of their nodes."""
    for status, detail in records(json.loads(old), json.loads(new), ("stack_trace",)):
        known = status == "known places"
        yield status, "places in the source, for tracebacks" if known else f"{name}: {detail}"


def caches(old: Path, new: Path) -> Iterator[Finding]:
    """Compare two caches of just-in-time variants by the sources in them."""
    before, after = (_sources(path) for path in (old, new))
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield "differs", name
    yield "known places", "pickles and libraries, which contain the folder of their process and were not compared"


def _sources(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        members = (
            one for one in archive.infolist() if one.filename.endswith((".py", ".cpp")) and one.file_size < SLACK
        )
        return {one.filename: _generated.plain(archive.read(one)) for one in members}
