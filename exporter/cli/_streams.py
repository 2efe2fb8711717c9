"""Keep a command running when its output is closed, full, a pipe without a reader, or lacks a character.

An encoding such as ISO-8859-1 has no ellipsis, for example: plain characters are written instead.

If a standard descriptor is closed at the start, the next file that is opened gets its number, and anything printed
would be written into that file.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SUBSTITUTED = "exporter.substituted"  # the name of the error handler of both streams
_PLAIN = {
    "…": "...", "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "→": "->", "←": "<-", "—": "-", "•": "*", "✓": "+", "✗": "x",
    "─": "-", "━": "-", "│": "|", "┃": "|", "├": "+", "└": "+", "μ": "u", "\ufffd": "?",
    "\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-", "\N{MINUS SIGN}": "-",
}  # fmt: skip
LOST = 74  # the exit code if the work succeeded but the output cannot be written: EX_IOERR of sysexits.h


class Output(io.RawIOBase):
    """Write to a descriptor. After an error, drop further output and remember the error."""

    def __init__(self, descriptor: int, was_closed: bool) -> None:
        self._descriptor, self._was_closed = descriptor, was_closed
        self._error: OSError | None = None

    @property
    def lost(self) -> str:
        """Return why output was lost; "" if none was, or if the reader closed the pipe."""
        return "" if self._error is None or self._error.errno == errno.EPIPE else str(self._error.strerror)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write part of the data, or drop all of it after an error. Returns how many bytes were handled."""
        size = memoryview(data).nbytes
        if self._was_closed and size:
            self._error = OSError(errno.EBADF, "it is closed")
        while self._error is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # the other end made it non-blocking
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._error = error
        return size

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._descriptor)


@contextmanager
def kept() -> Iterator[Output]:
    """Replace stdout and stderr with streams that never fail; yield stdout's Output, whose `lost` reports errors."""
    closed = _reopened()
    before = sys.stdin, sys.stdout, sys.stderr
    outputs = Output(1, 1 in closed), Output(2, 2 in closed)
    texts = [_text(output, old) for output, old in zip(outputs, before[1:], strict=True)]
    sys.stdout, sys.stderr = texts
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # it stays open, as stdin does
    try:
        yield outputs[0]
    finally:
        for text in texts:
            text.flush()
        sys.stdin, sys.stdout, sys.stderr = before


def _reopened() -> set[int]:
    """Open closed standard descriptors on /dev/null, for children too, and return them."""
    closed = set()
    for descriptor in (0, 1, 2):  # in this order, because open() takes the lowest free one
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            closed.add(descriptor)
    return closed


def _text(output: Output, old: TextIO | None) -> io.TextIOWrapper:
    if old is not None:
        old.flush()
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", "strict")
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    if errors in ("strict", "backslashreplace") or (errors == "surrogateescape" and not is_utf8):
        codecs.register_error(SUBSTITUTED, _substituted)
        errors = SUBSTITUTED
    by_line = output.fileno() == 2 or output.isatty()
    return io.TextIOWrapper(io.BufferedWriter(output), encoding, errors, line_buffering=by_line)


def _substituted(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return plain characters for one that the encoding lacks, or its number, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    first = error.object[error.start]
    return _PLAIN.get(first) or first.encode("ascii", "backslashreplace").decode(), error.start + 1
