"""How much memory there is, what each step of a run needs, and who may run beside whom.

What is free is read from /proc and the control groups; what a step needs was measured (`NEEDS`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
GB = 1e9
UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 where there is no limit


@dataclass(frozen=True)
class Shortage:
    """A step that failed as one does for want of memory: bytes that it was expected to need, and that were there.

    `limit` is the user's, 0 for none; `killed` says that the kernel ended a process for want of memory meanwhile.
    """

    step: str
    needed: int
    there: int
    limit: int = 0
    killed: bool = False

    @property
    def sure(self) -> bool:
        """Whether memory is known to be why, also where the process was ended from outside without a word."""
        return self.killed or self.needed > min(self.there, self.limit or self.there)

    def describe(self) -> str:
        """Needed and there, in words."""
        limit = f", and --memory-limit allows {_gb(self.limit)}" if self.limit else ""
        return f"{self.step} needs about {_gb(self.needed)}, {_gb(self.there)} were free{limit}"

    def remedies(self, alone: str = "", smaller: Mapping[str, int] | None = None) -> str:
        """What works: a higher limit, a run of its own, another precision (`--targets` to bytes), another machine."""
        found = []
        if self.limit and self.limit < self.needed <= self.there:
            found.append(f"give --memory-limit {self.needed / GB:.1f}")
        if alone and self.needed <= self.there:
            found.append(f"export it alone (--targets {alone})")
        bound = min(self.there, self.limit or self.there)
        fitting = {name: needed for name, needed in (smaller or {}).items() if needed <= bound}
        found += [f"take a smaller precision (--targets {name} needs about {_gb(n)})" for name, n in fitting.items()]
        machine = f"use a machine with {_gb(round(1.1 * self.needed))} free"
        return ", or ".join([*found, machine] if not found or self.needed > self.there else found)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


@dataclass(frozen=True)
class Need:
    """What a step takes: so many times the weights, and so many bytes whatever the model."""

    weights: float
    fixed: float

    def of(self, weights: int) -> int:
        """Bytes, for a model whose weights take `weights` bytes."""
        return round(self.weights * weights + self.fixed)


# Rounded up from proportional set sizes with GPT-2 of 0.4 billion parameters (1.42 GB; torch 2.14, 2026-11-22): the
# tree peaked at 7.1 GB in the export to compile and at 4.3 in onnx's, about 0.9 of it in processes that do not grow; a
# trace's job took 1.9 GB, a session of it 3.0, the golden's job 2.7. script and export are guesses from those.
# "" stands for whatever is not named.
EXPORTS = {
    "trace": Need(1.2, 0.8 * GB),
    "script": Need(1.5, 1.0 * GB),
    "compile": Need(3.8, 1.0 * GB),
    "onnx": Need(2.2, 0.8 * GB),
    "export": Need(1.2, 0.6 * GB),
    "": Need(3.8, 1.0 * GB),
}
SESSIONS = {
    "trace": Need(1.2, 1.5 * GB),
    "script": Need(1.2, 1.5 * GB),
    "compile": Need(1.5, 1.5 * GB),
    "onnx": Need(2.2, 1.5 * GB),
    "": Need(2.0, 1.5 * GB),
}
OTHERS = {"golden": Need(0.3, 1.5 * GB), "": Need(1.0, 1.0 * GB)}
LARGE = 1 * GB  # weights from which on a run takes a share of the machine, whatever is free
SHARE = Need(2.5, 2 * GB)  # beyond the weights themselves, which all share


def share(there: int, weights: int) -> int:
    """What steps may take side by side of the bytes that are there, for a model whose weights take `weights` bytes."""
    return there if weights < LARGE else min(there, SHARE.of(weights))


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
