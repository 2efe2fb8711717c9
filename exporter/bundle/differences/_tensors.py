"""Compare two safetensors files tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.bundle.differences import _numbers
from exporter.bundle.differences._finding import Finding

SUFFIX = ".safetensors"
LENGTH = 8  # size in bytes of the field with the header's length
_TYPES = {
    "BOOL": "u1", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
    "U64": "<u8", "F16": "<f2", "BF16": "bfloat16", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


def compare(old: Path, new: Path) -> Iterator[Finding]:
    """Compare two files."""
    (metadata, before), (other, after) = _read(old), _read(new)
    if metadata != other:
        yield "differs", "the metadata"
    for name in sorted(before.keys() ^ after.keys()):
        yield "differs", f"{name} is in only one of them"
    for name in sorted(before.keys() & after.keys()):
        (then, bytes_then), (now, bytes_now) = before[name], after[name]
        if then != now:
            yield "differs", f"{name} was {_described(then)}, is {_described(now)}"
        elif bytes_then != bytes_now:
            kind = _TYPES.get(now["dtype"])
            yield _numbers.compare(name, kind, bytes_then, bytes_now) if kind else ("differs", f"{name}: the bytes")


def _read(path: Path) -> tuple[Any, dict[str, tuple[dict[str, Any], bytes]]]:
    """Return the metadata, and each tensor's dtype, shape and bytes. Raises ValueError for another format."""
    data = path.read_bytes()
    start = LENGTH + int.from_bytes(data[:LENGTH], "little")
    header = json.loads(data[LENGTH:start])
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    metadata = header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        found[name] = ({"dtype": entry["dtype"], "shape": entry["shape"]}, data[start + begin : start + end])
    return metadata, found


def _described(entry: dict[str, Any]) -> str:
    return f"{entry['dtype']} {entry['shape']}"
