"""Two safetensors files, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.bundle.differences import _numbers
from exporter.bundle.differences._finding import Finding

SUFFIX = ".safetensors"
LENGTH = 8  # bytes that hold the header's length
_TYPES = {
    "BOOL": "u1", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8",
    "U64": "<u8", "F16": "<f2", "BF16": "bfloat16", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


def compare(old: Path, new: Path) -> Iterator[Finding]:
    """Of two files."""
    (said, before), (says, after) = _read(old), _read(new)
    if said != says:
        yield "differs", "what the metadata says"
    for name in sorted(before.keys() ^ after.keys()):
        yield "differs", f"{name} is in one of them only"
    for name in sorted(before.keys() & after.keys()):
        (then, bytes_then), (now, bytes_now) = before[name], after[name]
        if then != now:
            yield "differs", f"{name} was {_described(then)}, is {_described(now)}"
        elif bytes_then != bytes_now:
            kind = _TYPES.get(now["dtype"])
            yield _numbers.compare(name, kind, bytes_then, bytes_now) if kind else ("differs", f"{name}: its bytes")


def _read(path: Path) -> tuple[Any, dict[str, tuple[dict[str, Any], bytes]]]:
    """The metadata, and dtype and shape of each tensor with its bytes. ValueError for another form."""
    data = path.read_bytes()
    start = LENGTH + int.from_bytes(data[:LENGTH], "little")
    header = json.loads(data[LENGTH:start])
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    metadata = header.pop("__metadata__", None)
    found = {}
    for name, told in header.items():
        begin, end = told["data_offsets"]
        found[name] = ({"dtype": told["dtype"], "shape": told["shape"]}, data[start + begin : start + end])
    return metadata, found


def _described(told: dict[str, Any]) -> str:
    return f"{told['dtype']} {told['shape']}"
