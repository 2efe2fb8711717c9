"""Where a command writes, which may be closed, full, or a pipe that nobody reads any more: the work goes on.

A descriptor that is closed when the command starts would be given to the next file that is opened, and whoever prints
would write into that.
"""

from __future__ import annotations

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

LOST = 74  # the exit code where all is done but the output could not be written: EX_IOERR of sysexits.h


class Output(io.RawIOBase):
    """A descriptor to write to. What it does not take is dropped, and why is remembered."""

    def __init__(self, descriptor: int, was_closed: bool) -> None:
        self._descriptor, self._was_closed = descriptor, was_closed
        self._error: OSError | None = None

    @property
    def lost(self) -> str:
        """Why something could not be written; "" where nothing was, or where whoever read it had enough."""
        return "" if self._error is None or self._error.errno == errno.EPIPE else str(self._error.strerror)

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of it, or take it all where that cannot be done any more."""
        size = memoryview(data).nbytes
        if self._was_closed and size:
            self._error = OSError(errno.EBADF, "it is closed")
        while self._error is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # its other end made it so
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._error = error
        return size

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)


@contextmanager
def kept() -> Iterator[Output]:
    """Let stdout and stderr take whatever is written to them; gives that of stdout, to be asked what was lost."""
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
    """The standard descriptors that were closed, and lead nowhere from now on, here and in children."""
    closed = set()
    for descriptor in (0, 1, 2):  # the lowest that is free is the one that is opened
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            closed.add(descriptor)
    return closed


def _text(output: Output, old: TextIO | None) -> io.TextIOWrapper:
    if old is not None:
        old.flush()
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", "backslashreplace")
    by_line = output.fileno() == 2 or output.isatty()
    return io.TextIOWrapper(io.BufferedWriter(output), encoding, errors, line_buffering=by_line)
