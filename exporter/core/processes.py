"""The processes that a process has started, from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")


def stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process ID and the fields of /proc/PID/stat, starting with the state: proc_pid_stat(5)."""
    with suppress(OSError):
        for entry in PROC.iterdir():
            if entry.name.isdigit():
                with suppress(OSError):  # it ended meanwhile
                    yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    """Return the IDs of all descendants of a process, including orphans that it adopted."""
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
    """Kill these processes; ignore those that have already ended."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
