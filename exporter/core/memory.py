"""How much memory is free, by /proc and the control groups, and the room that steps of a run share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 where there is no limit


def free(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that processes may still take: of the machine, and of each control group that this process is in."""
    bounds = [_free_in(group) for group in _groups(proc, cgroups)]
    with suppress(OSError):
        found = _fields((proc / "meminfo").read_text())
        bounds.append(found.get("MemAvailable:", UNLIMITED // 1024) * 1024)
    return max(0, min(bounds, default=UNLIMITED))


def kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """How many processes the kernel has killed for want of memory so far, on the machine or in our control groups."""
    counts = [0]
    with suppress(OSError):
        counts.append(_fields((proc / "vmstat").read_text()).get("oom_kill", 0))
    for group in _groups(proc, cgroups):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                counts.append(_fields((group / name).read_text()).get("oom_kill", 0))
    return sum(counts)


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of our memory control groups, innermost first; a container sees its own as the root."""
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


def _free_in(group: Path) -> int:
    """Bytes left in one control group; what it holds of files can be dropped."""
    for limit, usage, dropped in (
        ("memory.max", "memory.current", ("inactive_file", "active_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
    ):
        with suppress(OSError, ValueError):
            bound = int((group / limit).read_text())  # "max" is no number
            if bound >= UNLIMITED:
                break
            stat = _fields((group / "memory.stat").read_text())
            return bound - int((group / usage).read_text()) + sum(stat.get(name, 0) for name in dropped)
    return UNLIMITED


def _fields(text: str) -> dict[str, int]:
    """`name number` lines."""
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def ran_out(error: BaseException | None) -> bool:
    """Whether an error says that the machine, or its GPU, has no memory left; it says nothing of the model then."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # torch's own, which is not imported here
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or "can't allocate memory" in str(error)


class Room:
    """Memory that steps share: each takes what it needs and waits until that is there.

    Nobody waits for ever: where nobody else is at work a step begins even if it needs more than there is. Safe to use
    from several threads.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken: list[int] = []
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Hold `size` bytes for a while."""
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
        """What somebody else has given back."""
        with self._changed:
            self.size += size
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more: the run ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
