"""Reading saved programs so that calls may write to their buffers, with weights memory-mapped on request.

Processes share mapped weights, and the kernel may evict them. A process that writes to one gets a copy of those pages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


def load(file: Path) -> torch.export.ExportedProgram:
    """Run torch.export.load with mapped weights, or without mapping if torch's reader has another interface."""
    with _mapping(file):
        return read(file)


def read(file: Path) -> torch.export.ExportedProgram:
    """Run torch.export.load and copy the buffers into separate memory.

    torch 2.11 returns tensors that are views of `bytes`. A call that writes to such a buffer changes an object that
    Python treats as constant: single bytes are shared in the process, and after such a write no file can be read.
    """
    program = torch.export.load(file)
    for held in (program.state_dict, program.constants):
        for name in held.keys() & set(program.graph_signature.buffers):
            held[name] = held[name].clone()
    add_hints(program)
    return program


def add_hints(program: torch.export.ExportedProgram) -> None:
    """Record the example's value of each symbol, which a program that was read lacks where only multiples are sizes.

    Without them, inductor cannot choose how to reduce over such sizes, as a group norm of an image does; before torch
    2.14, it cannot freeze weights either.
    """
    for node in program.graph.find_nodes(op="placeholder"):
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                _add_hint(size.node)


def _add_hint(size: Any) -> None:
    known: Any = size.shape_env.backed_var_to_val
    values = {symbol: value for symbol, value in known.items() if symbol.is_Symbol}
    unknown = [symbol for symbol in size.expr.free_symbols if symbol not in values]
    if len(unknown) != 1 or size.hint is None:
        return
    (symbol,) = unknown
    expression = size.expr.subs(values)
    slope, rest = expression.diff(symbol), expression.subs(symbol, 0)
    if slope.is_Integer and slope != 0 and ((size.hint - rest) / slope).is_Integer:
        known[symbol] = (size.hint - rest) / slope


class _Mapped:
    """torch's archive reader, but tensors are views of the mapped file, whose members are uncompressed."""

    def __init__(self, reader: Any, file: Path) -> None:
        self._reader = reader
        self._storage = torch.UntypedStorage.from_file(str(file), False, file.stat().st_size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def get_storage_from_record(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the one-dimensional tensor of a member."""
        start = self._reader.get_record_offset(name)
        part = self._storage[start : start + count * dtype.itemsize]
        return torch.empty(0, dtype=dtype).set_(part, 0, (count,), (1,))


@contextlib.contextmanager
def _mapping(file: Path) -> Iterator[None]:
    from torch.export.pt2_archive import _package  # imports torch._dynamo

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
