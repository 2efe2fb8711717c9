"""Read a property in the metadata of an ONNX model, without its graph and weights.

The file is a protobuf message, ModelProto of onnx.proto. Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

METADATA = 14  # ModelProto.metadata_props, of StringStringEntryProto
KEY, VALUE = 1, 2  # its fields
SIZED, VARINT = 2, 0  # wire types: preceded by a size, and seven bits a byte
FIXED = {1: 8, 5: 4}  # bytes of the other wire types


def find(path: Path, key: str, largest: int) -> bytes | None:
    """Return the value of a property, or None if the model lacks it.

    Raises ValueError if the file is not such a message or a property has more than `largest` bytes, and OSError.
    """
    with path.open("rb") as file:
        for entry in _values(file, METADATA, largest):
            if [*_values(io.BytesIO(entry), KEY, largest)] == [key.encode()]:
                return next(_values(io.BytesIO(entry), VALUE, largest), b"")
    return None


def _values(file: BinaryIO, field: int, largest: int) -> Iterator[bytes]:
    """Yield every value of a field of a message that is text or a message itself. Skip the other fields."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    while file.tell() < end:
        tag = _varint(file)
        wire = tag & 7
        if wire == VARINT:
            _varint(file)
            continue
        size = _varint(file) if wire == SIZED else FIXED.get(wire, end)
        after = file.tell() + size
        if after > end:
            raise ValueError("it is not a whole protobuf message")
        if (tag >> 3, wire) == (field, SIZED):
            if size > largest:
                raise ValueError(f"a property has more than {largest:,} bytes")
            yield file.read(size)
        file.seek(after)


def _varint(file: BinaryIO) -> int:
    """Read an integer of up to 64 bits, the lowest seven first."""
    number = 0
    for shift in range(0, 64, 7):
        (byte,) = file.read(1) or [0x80]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise ValueError("it is not a protobuf message")
