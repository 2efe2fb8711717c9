"""Free memory, and the memory budget of steps that run in parallel."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from exporter.core import memory
from exporter.core.memory import Room


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal: 24000000 kB\nMemAvailable:   20000000 kB\n")
    (folder / "vmstat").write_text("nr_free_pages 5\noom_kill 3\n")
    (folder / "self/cgroup").write_text("4:memory:/box/job\n3:cpu:/\n0::/box/job\n")
    return folder


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_free_memory_of_the_machine(proc: Path, tmp_path: Path) -> None:
    assert memory.free(proc, tmp_path / "none") == 20_000_000 * 1024


def test_the_tightest_control_group_limits_free_memory(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    files = {"memory__max": "max", "memory__current": "0", "memory__stat": ""}
    group(groups, **files)
    group(groups / "box/job", **files)
    assert memory.free(proc, groups) == 20_000_000 * 1024, "no group has a limit"
    assert memory.container_limit(proc, groups) == 0
    stat = "anon 1\ninactive_file 200\nactive_file 100\n"
    group(groups / "box", memory__max="5000", memory__current="1000", memory__stat=stat)
    assert memory.free(proc, groups) == 5000 - 1000 + 300, "the parent group has a limit; its page cache counts as free"
    assert memory.container_limit(proc, groups) == 5000
    group(groups / "box/job", memory__max="2000", memory__current="1900", memory__stat="")
    assert memory.free(proc, groups) == 100
    assert memory.container_limit(proc, groups) == 2000
    group(groups / "box/job", memory__current="2500")
    assert memory.free(proc, groups) == 0, "never negative"


def test_control_groups_of_version_1_limit_free_memory(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    unlimited = "9223372036854771712"
    group(groups / "memory/box/job", memory__limit_in_bytes=unlimited, memory__usage_in_bytes="1", memory__stat="")
    assert memory.free(proc, groups) == 20_000_000 * 1024
    stat = "inactive_file 5\ntotal_inactive_file 400\ntotal_active_file 50\n"
    files = {"memory__limit_in_bytes": "9000", "memory__usage_in_bytes": "3000", "memory__stat": stat}
    group(groups / "memory", **files)
    assert memory.free(proc, groups) == 9000 - 3000 + 450, "a container sees its own group as root"
    assert memory.container_limit(proc, groups) == 9000
    (proc / "meminfo").write_text("MemAvailable: 6 kB\n")
    assert memory.container_limit(proc, groups) == 0, "the machine has less left"


def test_out_of_memory_kills_are_counted(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    assert memory.kills(proc, groups) == 3
    group(groups / "box/job", memory__events="low 0\noom 1\noom_kill 2\n")
    assert memory.kills(proc, groups) == 5
    (proc / "vmstat").write_text("oom_kill 4\n")
    assert memory.kills(proc, groups) == 6


def begins(room: Room, size: int, seconds: float = 0.2) -> bool:
    """Return whether a step of that size would begin now."""
    begun = threading.Event()

    def step() -> None:
        with room.take(size):
            begun.set()

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    thread.join(seconds)
    found = begun.is_set()
    if not found:
        room.close()
        thread.join(5)
    return found


def test_steps_that_fit_run_in_parallel() -> None:
    room = Room(10)
    with room.take(6):
        assert begins(room, 4)


def test_a_step_that_does_not_fit_waits() -> None:
    room = Room(10)
    with room.take(6):
        assert not begins(room, 5)


def test_a_step_that_is_too_large_runs_alone() -> None:
    room = Room(10)
    assert begins(room, 50)
    with room.take(1):
        assert not begins(room, 50)


def test_released_memory_wakes_a_waiting_step() -> None:
    room, begun = Room(10), threading.Event()

    def step() -> None:
        with room.take(5):
            begun.set()

    with room.take(6):
        threading.Thread(target=step, daemon=True).start()
        assert not begun.wait(0.1)
        room.grow(1)
        assert begun.wait(5)
