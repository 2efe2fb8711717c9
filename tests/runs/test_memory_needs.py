"""The expected memory needs of steps, and the messages if memory runs out."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import Cli, Run

from exporter.core import memory
from exporter.core.errors import Blame, JobError
from exporter.core.progress import Listener
from exporter.core.records import Manifest, VariantRecord
from exporter.runs import check_bundle, memory_needs
from exporter.runs.memory_needs import LOAD, MemoryPlan, Shortage
from exporter.targets import GB, Need
from exporter.workers.session.client import PythonSession


def test_a_large_model_takes_a_share_of_the_machine() -> None:
    assert memory_needs.share(10**12, round(0.9 * GB)) == 10**12
    weights = round(3.1 * GB)
    assert weights + memory_needs.share(10**12, weights) <= 3.5 * weights + 2 * GB, "the documented limit"
    assert memory_needs.share(123, weights) == 123, "at most the free memory"


def test_a_need_grows_with_the_weights() -> None:
    assert Need(2.0, 0.5 * GB).of(round(3 * GB)) == round(6.5 * GB)


def test_a_shortage_reports_needed_and_free_memory() -> None:
    found = Shortage("the export to compile", round(12.8 * GB), round(9.1 * GB), limit=round(2 * GB))
    assert (
        found.describe() == "the export to compile needs about 12.8 GB; 9.1 GB was free, and --memory-limit is 2.0 GB"
    )


@pytest.mark.parametrize(
    ("found", "remedies"),
    [
        (
            Shortage("x", 8 * 10**9, 20 * 10**9, limit=2 * 10**9),
            "pass --memory-limit 8.0, or export it alone (--targets a)",
        ),
        (Shortage("x", 8 * 10**9, 20 * 10**9), "export it alone (--targets a)"),
        (
            Shortage("x", 8 * 10**9, 5 * 10**9),
            "use a smaller precision (--targets a@bf16 needs about 4.5 GB), or use a machine with 8.8 GB free",
        ),
        (Shortage("x", 20 * 10**9, 3 * 10**9), "use a machine with 22.0 GB free"),
    ],
)
def test_remedies_fit_the_available_memory(found: Shortage, remedies: str) -> None:
    smaller = {"a@bf16": round(4.5 * GB)} if found.free < 20 * 10**9 else {}
    assert found.remedies("a", smaller) == remedies


def test_a_limit_on_the_address_space_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (3_000_000 * 1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(memory, "free", lambda: 20 * GB)
    monkeypatch.setattr(memory, "container_limit", lambda: 0)
    error = MemoryPlan().explain_golden(JobError("it ended", blame=Blame("out-of-memory")))
    assert "20.0 GB was free, and `ulimit -v` limits the address space of a process to 3.1 GB" in str(error)
    assert error.remedy == "raise or remove `ulimit -v`"
    found = Shortage("loading", 0, 20 * GB, address_space=3 * GB)
    assert found.remedies().startswith("raise or remove `ulimit -v`, free some memory, ")
    monkeypatch.setattr("resource.getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory.address_space() == 0


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        (
            Shortage("x", 8 * GB, 3 * GB, killed=True, container=4 * GB),
            "raise the container's memory limit from 4.0 GB to more than 9.8 GB, or use a machine with 8.8 GB free",
        ),
        (
            Shortage("x", 2 * GB, 3 * GB, killed=True, container=4 * GB),
            "export it alone (--targets a), or raise the container's memory limit (now 4.0 GB)",
        ),
        (Shortage("x", 2 * GB, 3 * GB, limit=GB, container=4 * GB), "pass --memory-limit 2.0, or export it alone"),
        (
            Shortage("x", 0, 3 * GB, killed=True, container=4 * GB),
            "free some memory, raise the container's memory limit (now 4.0 GB), or use a larger machine",
        ),
    ],
)
def test_the_limit_of_a_container_is_named(found: Shortage, remedy: str) -> None:
    assert found.describe().endswith(", and the container's memory limit is 4.0 GB")
    assert found.remedies("a").startswith(remedy)


def test_the_limit_of_a_container_is_read_as_a_step_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: GB)
    limits = iter([3 * GB, 0])
    monkeypatch.setattr(memory, "container_limit", lambda: next(limits))
    plan = MemoryPlan()
    plan.begin("trace")
    found = plan.explain(VariantRecord("trace", "trace", "failed", "export", "it ended", cause="killed"))
    assert "1.0 GB was free, and the container's memory limit is 3.0 GB: " in found.reason


def test_memory_is_the_sure_cause_if_the_kernel_or_the_numbers_say_so() -> None:
    assert Shortage("x", 5, 10, killed=True).sure
    assert Shortage("x", 15, 10).sure
    assert Shortage("x", 5, 10, limit=4).sure
    assert not Shortage("x", 5, 10).sure, "another process may have sent the signal"


def test_an_unknown_need_is_reported_as_unknown() -> None:
    found = Shortage("loading", 0, 2 * 10**9, killed=True)
    assert found.describe() == "the memory that loading needs is unknown; 2.0 GB was free"
    assert found.remedies() == "free some memory, raise the container's memory limit, or use a larger machine"
    assert found.sure


def test_a_load_killed_by_the_kernel_reports_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: 2 * 10**9)
    monkeypatch.setattr(memory, "container_limit", lambda: 0)
    counts = iter([0, 1])
    monkeypatch.setattr(memory, "kills", lambda: next(counts))
    plan = MemoryPlan()
    plan.begin(LOAD)
    ended = "There was not enough memory: load was ended by SIGKILL (out of memory?)"
    found = plan.explain(VariantRecord("trace", "trace", "failed", "prepare", ended, cause="killed"))
    assert found.reason == (
        "There was not enough memory: the memory that loading and capturing the model needs is unknown; 2.0 GB was "
        "free: load was ended by SIGKILL (out of memory?)"
    )
    assert "--memory-limit" not in found.remedy, "no limit was given"


def test_a_run_that_cannot_load_the_model_reports_free_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: 2 * 10**9)
    manifest, _ = run("heavy:unloadable", "trace")
    (row,) = manifest.variants
    assert row.stage == "prepare"
    assert "2.0 GB was free" in row.reason
    assert "machine" in row.remedy


def recheck_timed(place: Path) -> Manifest:
    return check_bundle.run(
        place, check_bundle.CheckOptions(threads=1, timeout=120, bench=True, time_budget=0.1), Listener()
    )


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any model count as large, with memory for one session of trace but none for larger sessions."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    monkeypatch.setattr(memory_needs, "LARGE", 0)
    monkeypatch.setattr(memory_needs, "sessions", lambda target: Need(0.0, (1 if target == "trace" else 3) * GB))
    monkeypatch.setattr(memory, "free", lambda: 2 * 10**9)


@pytest.mark.usefixtures("_short")
def test_export_times_the_sessions_that_fit_and_checks_the_rest(run: Run) -> None:
    manifest, _ = run("tiny:mlp", "trace,export", bench=True, time_budget=0.1)
    rows = {row.name: row for row in manifest.variants}
    assert all(row.status == "passed" and row.parity for row in rows.values())
    assert rows["trace"].timings
    assert not rows["export"].timings
    assert "not enough memory" in rows["export"].untimed


@pytest.mark.usefixtures("_short")
def test_bench_times_the_sessions_that_fit_and_checks_the_rest(run: Run) -> None:
    _, place = run("tiny:mlp", "trace,export")
    rows = {row.name: row for row in recheck_timed(place).variants}
    assert all(row.status == "passed" and row.parity for row in rows.values())
    assert rows["trace"].timings
    assert not rows["export"].timings
    assert "not enough memory" in rows["export"].untimed


@pytest.mark.parametrize("budget", [0.0, 0.05])
def test_check_reports_needed_and_free_memory(budget: float, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    _, place = run("tiny:mlp", "trace")
    monkeypatch.setattr(memory, "free", lambda: round(0.5 * GB))
    monkeypatch.setattr(memory, "container_limit", lambda: 0)

    def fail(*_: Any) -> None:
        raise JobError("trace (python) was ended by SIGKILL (out of memory?)", signal="SIGKILL", blame=Blame("killed"))

    monkeypatch.setattr(PythonSession, "start", fail)
    (row,) = check_bundle.run(
        place, check_bundle.CheckOptions(threads=1, timeout=120, bench=budget > 0, time_budget=budget), Listener()
    ).variants
    said = "There was not enough memory: a session of trace needs about 1.5 GB; 0.5 GB was free: "
    assert (row.status, row.reason.startswith(said)) == ("failed", True), row.reason
    assert "use a machine with 1.7 GB free" in row.remedy


def test_a_session_killed_during_timing_is_explained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    _, place = run("tiny:mlp", "trace,export")
    monkeypatch.setattr(memory, "free", lambda: round(0.5 * GB))
    usual = PythonSession.time

    def time(session: PythonSession, runs: int, case: str = "") -> list[float]:
        if runs > 1 and "export" in session.name:
            raise JobError(
                "export (python) was ended by SIGKILL (out of memory?)", signal="SIGKILL", blame=Blame("killed")
            )
        return usual(session, runs, case)

    monkeypatch.setattr(PythonSession, "time", time)
    rows = {row.name: row for row in recheck_timed(place).variants}
    assert rows["trace"].status == "passed"
    assert "0.5 GB was free" in rows["export"].reason


@pytest.mark.parametrize(("free", "beside"), [(90 * GB, 2), (1.0, 1)])
def test_a_rebuild_runs_jobs_in_turn_if_memory_is_short(
    free: float, beside: int, run: Run, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, place = run("tiny:mlp", "trace,export")
    monkeypatch.setattr(memory, "free", lambda: round(free))
    at_work: list[int] = []
    usual = memory.Room.take

    @contextmanager
    def take(room: memory.Room, size: int) -> Iterator[None]:
        with usual(room, size):
            at_work.append(len(room._taken))
            time.sleep(0.5)
            yield

    monkeypatch.setattr(memory.Room, "take", take)
    cli("check", place, "--rebuild", "-q")
    assert min(max(at_work), 2) == beside
