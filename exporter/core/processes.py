"""Processes that a process has started, by what /proc says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def stats() -> Iterator[tuple[int, list[str]]]:
    """Each process, and the fields of its status from the state on: proc_pid_stat(5)."""
    with suppress(OSError):
        for entry in PROC.iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # it ended meanwhile
                    yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    """Whom a process has started, and they; also those that it adopted when they lost their parent."""
    children: dict[int, list[int]] = {}
    for one, fields in stats():
        children.setdefault(int(fields[1]), []).append(one)
    found: list[int] = []
    left = [pid]
    while left:
        new = children.get(left.pop(), [])
        found += new
        left += new
    return found


def end(pids: list[int]) -> None:
    """Kill them; whoever has ended already is left out."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
