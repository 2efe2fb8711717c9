"""Saved programs, read so that a call may write to their buffers, and their weights mapped where that is asked for.

Mapped weights are shared by processes, and the kernel may drop them. What writes to one has a copy of those pages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export.pt2_archive import _package


def load(file: Path) -> torch.export.ExportedProgram:
    """torch.export.load with mapped weights; as torch itself does it where its reader has another form."""
    with _mapping(file):
        return read(file)


def read(file: Path) -> torch.export.ExportedProgram:
    """torch.export.load, with buffers in memory of their own.

    torch 2.11 gives tensors that are views of `bytes`. A call that writes to such a buffer changes what Python holds
    for constant: of one byte there is a single object in a process, and no file can be read after that was written to.
    """
    program = torch.export.load(file)
    for held in (program.state_dict, program.constants):
        for name in held.keys() & set(program.graph_signature.buffers):
            held[name] = held[name].clone()
    return program


class _Mapped:
    """torch's reader of an archive, but that tensors are views of the mapped file. Members lie there uncompressed."""

    def __init__(self, reader: Any, file: Path) -> None:
        self._reader = reader
        self._storage = torch.UntypedStorage.from_file(str(file), False, file.stat().st_size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def get_storage_from_record(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The tensor of a member, flat."""
        start = self._reader.get_record_offset(name)
        part = self._storage[start : start + count * dtype.itemsize]
        return torch.empty(0, dtype=dtype).set_(part, 0, (count,), (1,))


@contextlib.contextmanager
def _mapping(file: Path) -> Iterator[None]:
    patched: Any = _package
    usual = patched.PT2ArchiveReader

    def open_reader(archive: Any) -> Any:
        reader = usual(archive)
        if hasattr(reader.archive_file, "get_record_offset"):
            reader.archive_file = _Mapped(reader.archive_file, file)
        return reader

    patched.PT2ArchiveReader = open_reader
    try:
        yield
    finally:
        patched.PT2ArchiveReader = usual
