"""What is free, who may run beside whom, and what is said where it did not suffice."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from exporter import memory
from exporter.memory import GB, Need, Room, Shortage


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


def test_the_machine_bounds_what_is_free(proc: Path, tmp_path: Path) -> None:
    assert memory.free(proc, tmp_path / "none") == 20_000_000 * 1024


def test_the_tightest_control_group_bounds_what_is_free(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    files = {"memory__max": "max", "memory__current": "0", "memory__stat": ""}
    group(groups, **files)
    group(groups / "box/job", **files)
    assert memory.free(proc, groups) == 20_000_000 * 1024, "none has a limit"
    stat = "anon 1\ninactive_file 200\nactive_file 100\n"
    group(groups / "box", memory__max="5000", memory__current="1000", memory__stat=stat)
    assert memory.free(proc, groups) == 5000 - 1000 + 300, "the one above ours; files can be dropped"
    group(groups / "box/job", memory__max="2000", memory__current="1900", memory__stat="")
    assert memory.free(proc, groups) == 100
    group(groups / "box/job", memory__current="2500")
    assert memory.free(proc, groups) == 0, "never less"


def test_control_groups_of_version_1_bound_it_too(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    unlimited = "9223372036854771712"
    group(groups / "memory/box/job", memory__limit_in_bytes=unlimited, memory__usage_in_bytes="1", memory__stat="")
    assert memory.free(proc, groups) == 20_000_000 * 1024
    stat = "inactive_file 5\ntotal_inactive_file 400\ntotal_active_file 50\n"
    files = {"memory__limit_in_bytes": "9000", "memory__usage_in_bytes": "3000", "memory__stat": stat}
    group(groups / "memory", **files)
    assert memory.free(proc, groups) == 9000 - 3000 + 450, "a container sees its own as the root"


def test_the_kernels_kills_are_counted(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    assert memory.kills(proc, groups) == 3
    group(groups / "box/job", memory__events="low 0\noom 1\noom_kill 2\n")
    assert memory.kills(proc, groups) == 5
    (proc / "vmstat").write_text("oom_kill 4\n")
    assert memory.kills(proc, groups) == 6


def test_a_large_model_takes_a_share_of_the_machine() -> None:
    assert memory.share(10**12, round(0.9 * GB)) == 10**12
    weights = round(3.1 * GB)
    assert weights + memory.share(10**12, weights) <= 3.5 * weights + 2 * GB, "as promised"
    assert memory.share(123, weights) == 123, "no more than there is"


def test_a_need_grows_with_the_weights() -> None:
    assert Need(2.0, 0.5 * GB).of(round(3 * GB)) == round(6.5 * GB)


def begins(room: Room, size: int, seconds: float = 0.2) -> bool:
    """Whether a step of that size would begin now."""
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


def test_what_fits_runs_side_by_side() -> None:
    room = Room(10)
    with room.take(6):
        assert begins(room, 4)


def test_what_does_not_fit_waits() -> None:
    room = Room(10)
    with room.take(6):
        assert not begins(room, 5)


def test_a_step_that_is_too_large_runs_alone() -> None:
    room = Room(10)
    assert begins(room, 50)
    with room.take(1):
        assert not begins(room, 50)


def test_memory_that_is_given_back_wakes_who_waits() -> None:
    room, begun = Room(10), threading.Event()

    def step() -> None:
        with room.take(5):
            begun.set()

    with room.take(6):
        threading.Thread(target=step, daemon=True).start()
        assert not begun.wait(0.1)
        room.grow(1)
        assert begun.wait(5)


def test_a_shortage_says_what_was_needed_and_there() -> None:
    found = Shortage("the export to compile", round(12.8 * GB), round(9.1 * GB), limit=round(2 * GB))
    assert (
        found.describe()
        == "the export to compile needs about 12.8 GB, 9.1 GB were free, and --memory-limit allows 2.0 GB"
    )


@pytest.mark.parametrize(
    ("found", "remedies"),
    [
        (
            Shortage("x", 8 * 10**9, 20 * 10**9, limit=2 * 10**9),
            "give --memory-limit 8.0, or export it alone (--targets a)",
        ),
        (Shortage("x", 8 * 10**9, 20 * 10**9), "export it alone (--targets a)"),
        (
            Shortage("x", 8 * 10**9, 5 * 10**9),
            "take a smaller precision (--targets a@bf16 needs about 4.5 GB), or use a machine with 8.8 GB free",
        ),
        (Shortage("x", 20 * 10**9, 3 * 10**9), "use a machine with 22.0 GB free"),
    ],
)
def test_what_works_fits(found: Shortage, remedies: str) -> None:
    smaller = {"a@bf16": round(4.5 * GB)} if found.there < 20 * 10**9 else {}
    assert found.remedies("a", smaller) == remedies


def test_who_killed_is_known_from_the_kernel_or_from_the_figures() -> None:
    assert Shortage("x", 5, 10, killed=True).sure
    assert Shortage("x", 15, 10).sure
    assert Shortage("x", 5, 10, limit=4).sure
    assert not Shortage("x", 5, 10).sure, "somebody else may have sent the signal"
