"""How busy the machine was with anything else while something was timed: what /proc and the control group say.

CPUs are those that this process may use. Its own work is that of its process tree. Nothing is known where there is no
/proc; a machine that nobody can ask counts as quiet.
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
LOOK_S = 1.0  # between two looks while waiting
IN_A_ROW = 2  # quiet looks, so that a pause of someone else's is not taken for the end


@dataclass(frozen=True)
class Reading:
    """Seconds until now: of the clock, of our CPUs at work and stolen, of our own processes, of being throttled."""

    clock: float
    busy: float
    stolen: float
    own: float
    throttled: float
    hot: int  # how often a CPU has slowed down for heat


def read() -> Reading | None:
    """The counters as they are now; None where nobody keeps them."""
    try:
        busy, stolen = _cpu_times(_usable())
        return Reading(time.monotonic(), busy, stolen, _own(), _throttled(), _hot())
    except (OSError, ValueError, IndexError):
        return None


def between(first: Reading | None, last: Reading | None) -> MachineLoad | None:
    """What there was beside our own work from one reading to the next, as shares of all our CPUs."""
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
    """Watches from its making until it is asked."""

    first: Reading | None = field(default_factory=read)

    def load(self) -> MachineLoad | None:
        """What there was beside our own work until now."""
        return between(self.first, read())


def wait(limit_s: float, progress: Callable[[str], None], look: Callable[[], MachineLoad | None] | None = None) -> str:
    """Wait until the machine is quiet, but no longer than `limit_s`; a warning where it never was, else ""."""
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


def _look() -> MachineLoad | None:
    watch = Watch()
    time.sleep(LOOK_S)
    return watch.load()


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0)


def _usable() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def _cpu_times(cpus: frozenset[int]) -> tuple[float, float]:
    """Seconds at work, and seconds that another guest had: proc_stat(5)."""
    busy = stolen = 0.0
    for line in (PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
            busy += user + nice + system + irq + softirq
            stolen += steal
    return busy / _ticks(), stolen / _ticks()


def _own() -> float:
    """CPU seconds of this process and all that it started, those that have ended among them: proc_pid_stat(5)."""
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
    """Each process: its number, its parent's, and its ticks and those of children that it has waited for."""
    for pid, fields in processes.stats():
        yield pid, int(fields[1]), sum(map(int, fields[11:15]))


def _throttled() -> float:
    """Seconds for which the control group's quota has stopped us; 0 where there is none."""
    with suppress(OSError, ValueError, StopIteration):  # version 1 of control groups has no such line
        group = next(line[3:] for line in (PROC / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
        for line in (CGROUP / group.lstrip("/") / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec":
                return int(value) / 1e6
    return 0.0


def _hot() -> int:
    """How often cores have slowed down for heat; 0 where nobody counts."""
    count = 0
    for file in CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with suppress(OSError, ValueError):
            count += int(file.read_text())
    return count


def _load() -> float:
    return os.getloadavg()[0]


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")
