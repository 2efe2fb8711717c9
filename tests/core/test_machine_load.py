"""Other load on the machine during a measurement: how it is measured, and how the report uses it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import Cli
from support.manifests import manifest, timing, variant

from exporter.core import machine_load
from exporter.core.records import Goal, Manifest
from exporter.core.timing_records import MachineLoad
from exporter.report import summary

CALM = MachineLoad(4, 0.02, 0.0, 0.0, 0, 0.3)
BUSY = replace(CALM, others=0.3, load=7.2)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., machine_load.Reading]:
    """Return a function that fakes /proc of two CPUs and reads it; each call is one second later."""
    clock = iter(range(100))
    monkeypatch.setattr(machine_load, "PROC", tmp_path)
    monkeypatch.setattr(machine_load.processes, "PROC", tmp_path)
    monkeypatch.setattr(machine_load, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine_load, "CPUS", tmp_path / "cpu")
    monkeypatch.setattr(machine_load, "_usable", lambda: frozenset({0, 1}))
    monkeypatch.setattr(machine_load, "_ticks", lambda: 100)
    monkeypatch.setattr(machine_load.os, "getpid", lambda: 7)
    monkeypatch.setattr(machine_load.time, "monotonic", lambda: float(next(clock)))

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def look(user: int = 0, steal: int = 0, own: int = 0, throttled: int = 0, hot: int = 0) -> machine_load.Reading:
        cpu = f"{user} 0 0 9 9 0 0 {steal} 0 0"
        write("stat", f"cpu  99 9\ncpu0 {cpu}\ncpu1 0 0 0 0 0 0 0 0 0 0\ncpu9 {10 * user} 0 0 0 0 0 0 0 0 0\nintr 5\n")
        for pid, parent, ticks in ((7, 1, 0), (8, 7, own), (9, 8, 0), (10, 1, 5000 + user)):
            write(f"{pid}/stat", f"{pid} (a (b) c) S {parent} {' '.join('0' * 9)} {ticks} 0 0 0 20 0\n")
        write("self/cgroup", "0::/job\n")
        write("cgroup/job/cpu.stat", f"usage_usec 1\nthrottled_usec {throttled}\n")
        write("cpu/cpu0/thermal_throttle/core_throttle_count", f"{hot}\n")
        found = machine_load.read()
        assert found is not None
        return found

    return look


def test_the_load_of_other_processes(machine: Callable[..., machine_load.Reading]) -> None:
    """Of 200 ticks on our two CPUs, 80 are busy and 20 of these belong to a child, so others used 60."""
    found = machine_load.between(machine(100), machine(180, own=20))
    assert found is not None
    assert (found.cpus, found.others, found.steal, found.throttled, found.hot) == (2, pytest.approx(0.3), 0, 0, 0)
    assert found.busy


def test_our_own_work_does_not_count(machine: Callable[..., machine_load.Reading]) -> None:
    found = machine_load.between(machine(100), machine(300, own=200))
    assert found is not None
    assert (found.others, found.busy) == (0.0, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steal": 10}, "other guests of the host used 5%"),
        ({"throttled": 50_000}, "a CPU quota stopped it for 5% of the time"),
        ({"hot": 3}, "cores slowed down because of heat 3 times"),
    ],
)
def test_other_disturbances(change: dict[str, int], said: str, machine: Callable[..., machine_load.Reading]) -> None:
    found = machine_load.between(machine(), machine(**change))
    assert found is not None
    assert found.busy
    assert said in found.describe()


def test_the_load_is_unknown_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_load, "PROC", tmp_path / "none")
    assert machine_load.read() is None
    assert machine_load.Watch().load() is None


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="there is no /proc")
def test_this_machine() -> None:
    """The work of a child process counts as our own even after it has ended."""
    before = machine_load.read()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    after = machine_load.read()
    assert before is not None
    assert after is not None
    assert after.own - before.own >= 0.45
    assert after.busy - before.busy >= 0.45


def looks(*found: MachineLoad) -> Iterator[MachineLoad]:
    yield from found
    pytest.fail("it looked again")


def test_waiting_ends_after_two_quiet_looks() -> None:
    heard: list[str] = []
    given = looks(BUSY, CALM, BUSY, CALM, CALM)
    assert machine_load.wait(60.0, heard.append, lambda: next(given)) == ""
    assert heard == ["wait: other processes used 30% of 4 CPUs, load 7.2"] * 2


def test_waiting_has_a_time_limit() -> None:
    said = machine_load.wait(0.05, lambda _: None, lambda: time.sleep(0.02) or BUSY)
    assert said == "the machine did not become quiet in 0.05 s: other processes used 30% of 4 CPUs, load 7.2"
    assert machine_load.wait(0.0, lambda _: None, lambda: pytest.fail("it looked")) == ""


def timed(machine: MachineLoad | None, stable: bool = True, goal: Goal | None = None) -> Manifest:
    """Return a manifest in which trace is 1.5 times as fast as eager, and onnx a little slower than trace."""
    rows = [
        replace(variant(name), timings={"python": replace(timing(median), stable=stable, speedup=1.5, speedup_ci95=ci)})
        for name, median, ci in (("trace", 10.0, (1.2, 1.9)), ("onnx", 11.0, (1.1, 1.7)))
    ]
    return replace(manifest(*rows), machine=machine, goal=goal or Goal())


def headline(found: Manifest) -> str:
    return " ".join(summary.sentences(found)[1:])


def test_a_quiet_machine_is_not_mentioned() -> None:
    for machine in (CALM, None):
        text = headline(timed(machine))
        assert text.startswith("Ship trace.pt: 10.0 ms in Python, 1.2x to 1.9x eager")
        assert "distinguishable" not in text
        assert "busy" not in text


def test_a_busy_machine_is_in_the_headline_and_widens_the_intervals() -> None:
    text = headline(timed(BUSY))
    assert text.startswith(
        "The machine was busy during timing: other processes used 30% of 4 CPUs, load 7.2. Ship trace.pt: "
    )
    assert "(not distinguishable from onnx)" in text
    assert "The machine was busy: it may be slower than eager, or not distinguishable from it." in text  # 1.2 by 0.7


@pytest.mark.parametrize(("machine", "stable"), [(BUSY, False), (replace(BUSY, others=0.6), True)])
def test_nothing_is_recommended_if_the_times_are_unreliable(machine: MachineLoad, stable: bool) -> None:
    text = headline(timed(machine, stable))
    assert "Ship" not in text
    assert text.endswith("so nothing is recommended. " + summary.AGAIN)
    assert summary.alternatives(timed(machine, stable)) == []
    assert "Ship trace.pt" in headline(timed(machine, stable, Goal("size")))


def test_a_large_speedup_has_no_exponent() -> None:
    wide = replace(timing(1.0, stable=False), speedup=200.0, speedup_ci95=(3.14, 512.3))
    assert summary._faster(wide, "eager") == "3.1x to 512x eager"


def test_a_wide_interval_is_printed_as_an_interval() -> None:
    """A case was eager with 566 to 1216 ms, which was marked only by a `~`."""
    assert "1.2x to 1.9x eager" in headline(timed(CALM, stable=False))
    assert "1.50x" not in headline(timed(CALM, stable=False))
    assert "2.00x eager" in headline(manifest(variant("trace", 5.0)))  # ±1%


def test_a_p99_of_few_runs_is_not_printed() -> None:
    """A bundle from an earlier exporter may have one."""
    from exporter.release import gates
    from exporter.release.plan import Gates
    from exporter.report import rows

    few = replace(timing(10.0), runs=20)
    assert rows.percentile(few, 90) == rows.percentile(few, 99) == "-"
    assert rows.percentile(timing(10.0), 99) == "12.0"
    record = replace(variant("trace"), timings={"python": few})
    (check,) = gates.check(Gates(max_p99_ms=99), gates.measure(record))
    assert (check.passed, check.text) == (False, "not measured, at most 99 ms")
    found = replace(manifest(record), goal=Goal(max_p99_ms=99))
    assert "No artifact meets the limits" in headline(found)


def test_the_help_matches_the_behaviour(cli: Cli) -> None:
    from exporter.evidence.benchmark import FEWEST_WINDOWS

    for name in ("export", "bench"):
        said = " ".join(cli(name, "--help").out.split())
        assert f"called at least {FEWEST_WINDOWS} times" in said
        assert "--wait-quiet SECONDS" in said


def test_the_load_that_took_more_of_the_machine() -> None:
    quiet, some, much = (MachineLoad(2, others, 0.0, 0.0, 0, 1.0) for others in (0.05, 0.2, 0.6))
    assert machine_load.busier(some, much) == machine_load.busier(much, some) == much
    assert machine_load.busier(quiet, some) == machine_load.busier(some, None) == some
    assert machine_load.busier(quiet, None) is None
