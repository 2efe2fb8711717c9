"""Measure free memory through /proc and control groups, and share it between the steps of a run."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # cgroup v1 reports a number near 2^63 if there is no limit


def free(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that processes can still allocate, on the machine and in every control group of this process."""
    return max(0, min(_available(proc), *(left for left, _ in map(_left_in, _groups(proc, cgroups)))))


def container_limit(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the limit in bytes of the control group that has the least memory left; 0 if the machine has no more."""
    left, limit = min(map(_left_in, _groups(proc, cgroups)), default=(UNLIMITED, UNLIMITED))
    return limit if left < _available(proc) else 0


def _available(proc: Path) -> int:
    """Return the bytes that processes can still allocate on the machine."""
    with suppress(OSError):
        return _fields((proc / "meminfo").read_text()).get("MemAvailable:", UNLIMITED // 1024) * 1024
    return UNLIMITED


def address_space() -> int:
    """Return the limit on the address space of each process (`ulimit -v`) in bytes, 0 if there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return 0 if limit == resource.RLIM_INFINITY else limit


def kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return how many processes the out-of-memory killer has ended, on the machine and in our control groups."""
    counts = [0]
    with suppress(OSError):
        counts.append(_fields((proc / "vmstat").read_text()).get("oom_kill", 0))
    for group in _groups(proc, cgroups):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                counts.append(_fields((group / name).read_text()).get("oom_kill", 0))
    return sum(counts)


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the directories of our memory control groups, innermost first; a container sees its own as root."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            root = cgroups / "memory" if kinds else cgroups
            group = root / path.lstrip("/")
            while group != root and root in group.parents:
                yield group
                group = group.parent
            yield root


def _left_in(group: Path) -> tuple[int, int]:
    """Return the bytes left in one control group, whose page cache counts as free, and its limit."""
    for limit, usage, dropped in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        with suppress(OSError, ValueError):
            bound = int((group / limit).read_text())  # "max" raises ValueError
            if bound >= UNLIMITED:
                break
            stat = _fields((group / "memory.stat").read_text())
            return bound - int((group / usage).read_text()) + sum(stat.get(name, 0) for name in dropped), bound
    return UNLIMITED, UNLIMITED


def _fields(text: str) -> dict[str, int]:
    """Parse lines of the form `name number`."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def ran_out(error: BaseException | None) -> bool:
    """Return whether the machine or its GPU ran out of memory, which is no fault of the model."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # by name, because torch is not imported here
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


class Room:
    """A memory budget that steps share: each takes what it needs and waits until that is available.

    No step waits for ever: if no other step is running, it begins even if it needs more than the budget. Thread-safe.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken: list[int] = []
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait for `size` bytes, and hold them during the body."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._taken or sum(self._taken) + size <= self.size)
            self._taken.append(size)
        try:
            yield
        finally:
            with self._changed:
                self._taken.remove(size)
                self._changed.notify_all()

    def grow(self, size: int) -> None:
        """Add bytes that something else has released."""
        with self._changed:
            self.size += size
            self._changed.notify_all()

    def close(self) -> None:
        """Let all steps that wait begin now, because the run is ending."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
