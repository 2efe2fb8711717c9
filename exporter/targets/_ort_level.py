"""The level of onnxruntime's graph optimizations, which a model's metadata carries if it is not the highest."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from exporter.core.errors import ArtifactError

PROPERTY = "exporter.graph_optimization"
NAMES = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}  # members of onnxruntime.GraphOptimizationLevel
METADATA = 14  # the field of metadata_props in ONNX's ModelProto; an entry has its key in field 1 and its value in 2


def of(path: Path) -> Any:
    """Return the level with which the model at `path` is to be loaded, as a GraphOptimizationLevel.

    Only the file's metadata is read, because a model may have gigabytes of weights.
    """
    import onnxruntime as ort

    return getattr(ort.GraphOptimizationLevel, NAMES[recorded(path)])


def recorded(path: Path) -> str:
    """Return the level in the model's metadata; "all" if there is none, or if the file is broken.

    Raises ArtifactError for a level that is not in NAMES.
    """
    try:
        with path.open("rb") as file:
            for number, content in _fields(file, path.stat().st_size):
                entry = dict(_fields(io.BytesIO(content), len(content))) if number == METADATA else {}
                if entry.get(1) == PROPERTY.encode():
                    level = entry.get(2, b"").decode(errors="replace")
                    if level not in NAMES:
                        cause = f"{path} is to run with {level!r}, a level of optimizations that is not known here"
                        raise ArtifactError(cause, "upgrade exporter")
                    return level
    except (OSError, ValueError):  # onnxruntime says better what is wrong
        return "all"
    return "all"


def _fields(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the short fields of a message that have a length. Raises ValueError at its end.

    Reference: protobuf.dev/programming-guides/encoding.
    """
    while file.tell() < size:
        number, kind = divmod(_varint(file), 8)
        if kind == 2:
            length = _varint(file)
            if number in (1, 2, METADATA) and length < 2**16:
                content = file.read(length)
                if len(content) < length:
                    raise ValueError("an incomplete field")
                yield number, content
            else:
                file.seek(length, io.SEEK_CUR)
        elif kind == 0:
            _varint(file)
        elif kind in (1, 5):
            file.seek(8 if kind == 1 else 4, io.SEEK_CUR)
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(file: BinaryIO) -> int:
    value, shift = 0, 0
    while True:
        byte = file.read(1)
        if not byte or shift > 63:
            raise ValueError("an incomplete number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
