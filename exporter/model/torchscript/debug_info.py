"""Source locations of the nodes in a TorchScript archive, without the folders of the machine that made it.

torch writes them beside the code, as `*.debug_pkl`: a table of strings, and byte ranges in texts joined from them. For
a trace, such a text is a stack, innermost frame first; otherwise it is a function's source. Python and C++ print it
with the errors of a call.
"""

from __future__ import annotations

import bisect
import io
import itertools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.jit import _pickle

from exporter.core import source_lines

Text = tuple[list[int], int, int]  # indices of its lines, the file's index, the number of its first line
Move = Callable[[int], int]

_FORMAT = "FORMAT_WITH_STRING_TABLE"
_FRAME = re.compile(r"([^\n]+)\((\d+)\): [^\n]+\n?")
_TRACER = ("exporter/", "torch/jit/_trace.py", "<frozen runpy>")  # prefixes of files whose frames are not the model's
_VERSION = ("version", ".data/version")
_WRITTEN_LAST = (*_VERSION, ".data/serialization_id", ".format_version", ".storage_alignment")


def save(module: torch.jit.ScriptModule, path: Path, extra: dict[str, str]) -> None:
    """Run torch.jit.save, with source locations that do not depend on the machine."""
    whole = path.with_name(f"{path.name}.whole")  # begins with the artifact's name, as what a failed export leaves
    try:
        torch.jit.save(module, str(whole), _extra_files=extra)
        reader, writer = torch._C.PyTorchFileReader(str(whole)), torch._C.PyTorchFileWriter(str(path))
        names = reader.get_all_records()
        for name in names:
            if name not in _WRITTEN_LAST:
                data = reader.get_record(name)
                data = portable(data) if name.endswith(".debug_pkl") else data
                writer.write_record(name, data, len(data))
        writer.set_min_version(max(int(reader.get_record(name)) for name in _VERSION if name in names))
        writer.write_end_of_file()
    finally:
        whole.unlink(missing_ok=True)


def portable(data: bytes) -> bytes:
    """Return a `*.debug_pkl` with files named by `source_lines.short` and stacks of only the model's frames."""
    form, table, ranges = _Reader(io.BytesIO(data)).load()
    if form != _FORMAT:
        return data
    index: dict[str, int] = {"": 0}
    moved: dict[tuple[Any, ...], tuple[Text, Move]] = {}
    again = []
    for offset, ((lines, file, first), start, end), tag in ranges:
        key = (*lines, file, first)
        if key not in moved:
            moved[key] = _moved([table[line] for line in lines], table[file], first, index)
        text, move = moved[key]
        again.append((offset, (text, move(start), move(end)), tag))
    return pickle.dumps((_FORMAT, tuple(index), tuple(again)), protocol=2)


def _moved(lines: list[str], file: str, first: int, index: dict[str, int]) -> tuple[Text, Move]:
    """Return a text whose strings are in `index`, and a function that maps byte positions of the old text to it."""
    shown = lines
    if all(_FRAME.fullmatch(line) for line in lines if line):  # a stack
        shown = [_frame(line) for line in lines]
        if innermost := _FRAME.match("".join(shown)):
            file, first = innermost[1], int(innermost[2])
    starts, ends = ([0, *itertools.accumulate(len(line.encode()) for line in those)] for those in (lines, shown))

    def move(position: int) -> int:
        line = bisect.bisect_right(starts, position) - 1
        inside = ends[line] + position - starts[line]
        return min([inside, *ends[line + 1 : line + 2]])  # torch writes the range 0 to 1 for empty text

    numbers = _Numbers(index.setdefault(line, len(index)) for line in shown if line)  # torch cannot handle empty lines
    return (numbers, index.setdefault(source_lines.short(file), len(index)), first), move


def _frame(line: str) -> str:
    """Return a line of a stack in its portable form; "" if the frame is not the model's."""
    frame = _FRAME.fullmatch(line)
    if frame is None:
        return line
    file = source_lines.short(frame[1])
    return "" if file.startswith(_TRACER) else file + line[frame.end(1) :]


class _Numbers(list[int]):
    """A list that torch's C++ reader recognises as a list of integers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _pickle.build_intlist, (list(self),)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("torch.jit._pickle", "build_intlist"):
            raise pickle.UnpicklingError(f"{module}.{name} is in debug information")
        return list
