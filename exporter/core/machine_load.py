"""Measure how busy the machine was with other work during a timing, from /proc and the control group.

Only the CPUs that this process may use count. Its own work is that of its process tree. Without /proc the load is
unknown, and an unknown load counts as quiet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from exporter.core import processes
from exporter.core.timing_records import MachineLoad

PROC, CGROUP, CPUS = Path("/proc"), Path("/sys/fs/cgroup"), Path("/sys/devices/system/cpu")
LOOK_S = 1.0  # duration of each look while waiting
IN_A_ROW = 2  # quiet looks required, so that a pause in other work is not mistaken for its end


@dataclass(frozen=True)
class Reading:
    """Counters in seconds: the clock, busy and stolen CPU time, CPU time of our own processes, and throttled time."""

    clock: float
    busy: float
    stolen: float
    own: float
    throttled: float
    hot: int  # how often a CPU has slowed down because of heat


def read() -> Reading | None:
    """Read the current counters. Return None if the system does not provide them."""
    try:
        busy, stolen = _cpu_times(_usable())
        return Reading(time.monotonic(), busy, stolen, _own(), _throttled(), _hot())
    except (OSError, ValueError, IndexError):
        return None


def between(first: Reading | None, last: Reading | None) -> MachineLoad | None:
    """Return the load apart from our own work between two readings, as shares of all our CPUs; None if unknown."""
    if first is None or last is None or last.clock <= first.clock:
        return None
    seconds = last.clock - first.clock
    whole = seconds * len(_usable())
    others = (last.busy - first.busy) - (last.own - first.own)
    return MachineLoad(
        cpus=len(_usable()),
        others=_share(others, whole),
        steal=_share(last.stolen - first.stolen, whole),
        throttled=_share(last.throttled - first.throttled, seconds),
        hot=max(last.hot - first.hot, 0),
        load=_load(),
    )


@dataclass
class Watch:
    """Measure the load from the creation of the object until `load` is called."""

    first: Reading | None = field(default_factory=read)

    def load(self) -> MachineLoad | None:
        """Return the load apart from our own work so far; None if unknown."""
        return between(self.first, read())


def wait(limit_s: float, progress: Callable[[str], None], look: Callable[[], MachineLoad | None] | None = None) -> str:
    """Wait at most `limit_s` seconds for a quiet machine. Return a warning if it stays busy, else ""."""
    look = look or _look
    deadline, quiet, found = time.monotonic() + limit_s, 0, None
    while quiet < IN_A_ROW and time.monotonic() < deadline:
        found = look()
        quiet = quiet + 1 if found is None or not found.busy else 0
        if not quiet and found is not None:
            progress(f"wait: {found.describe()}")
    if quiet or found is None:
        return ""
    return f"the machine did not become quiet in {limit_s:g} s: {found.describe()}"


def busier(one: MachineLoad | None, other: MachineLoad | None) -> MachineLoad | None:
    """Return the load that took more of the machine, or None if neither made it busy."""
    busy = [load for load in (one, other) if load is not None and load.busy]
    return max(busy, key=lambda load: load.lost, default=None)


def _look() -> MachineLoad | None:
    watch = Watch()
    time.sleep(LOOK_S)
    return watch.load()


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0)


def _usable() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def _cpu_times(cpus: frozenset[int]) -> tuple[float, float]:
    """Return the seconds that these CPUs were busy and the seconds stolen by other guests: proc_stat(5)."""
    busy = stolen = 0.0
    for line in (PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
            busy += user + nice + system + irq + softirq
            stolen += steal
    return busy / _ticks(), stolen / _ticks()


def _own() -> float:
    """Return the CPU seconds of this process and its descendants, ended ones included: proc_pid_stat(5)."""
    spent: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for pid, parent, ticks in _processes():
        spent[pid] = ticks / _ticks()
        children.setdefault(parent, []).append(pid)
    total, left = 0.0, [os.getpid()]
    while left:
        pid = left.pop()
        total += spent.get(pid, 0.0)
        left += children.get(pid, [])
    return total


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield the pid, the parent's pid and the ticks of each process, with those of children it has waited for."""
    for pid, fields in processes.stats():
        yield pid, int(fields[1]), sum(map(int, fields[11:15]))


def _throttled() -> float:
    """Return the seconds that the control group's quota has stopped us; 0 if there is no quota."""
    with suppress(OSError, ValueError, StopIteration):  # cgroup version 1 has no such line
        group = next(line[3:] for line in (PROC / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
        for line in (CGROUP / group.lstrip("/") / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec":
                return int(value) / 1e6
    return 0.0


def _hot() -> int:
    """Return how often cores have slowed down because of heat; 0 if the system does not count it."""
    count = 0
    for file in CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with suppress(OSError, ValueError):
            count += int(file.read_text())
    return count


def _load() -> float:
    return os.getloadavg()[0]


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")
