"""Timing sessions at the example and at the points of a sweep, with simulated sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from exporter.core.errors import JobError
from exporter.core.records import EAGER, SessionRecord, VariantRecord
from exporter.core.timing_records import runs_for
from exporter.runs import latency

EXAMPLE = latency.EXAMPLE


class Simulated:
    """A session whose calls take `ms`; it refuses some points, fails at others, and ends after `lasts` calls."""

    def __init__(
        self, ms: float = 20.0, refused: Sequence[str] = (), fails: Sequence[str] = (), lasts: float = math.inf
    ) -> None:
        self.ms, self.refused, self.fails, self.lasts = ms, frozenset(refused), fails, lasts
        self.calls = 0

    def time(self, runs: int, case: str = EXAMPLE) -> list[float]:
        if case in self.fails or self.calls >= self.lasts:
            raise JobError(f"died at {case or 'the example'}")
        self.calls += runs
        return [self.ms] * runs


def timed(points: Sequence[str] = (), least_runs: int = 0, **sessions: Simulated) -> latency.Measured:
    keyed = {(name, "python"): session for name, session in sessions.items()}
    budget = latency.Budget(0.05, least_runs)
    return latency.measure_artifacts(keyed, points, budget, lambda name, stage: None)  # type: ignore[arg-type]


def names(found: latency.Measured, point: str = EXAMPLE) -> list[str]:
    return [name for (name, _), series in found.points[point].items() if series.windows]


def passed(name: str) -> VariantRecord:
    return VariantRecord(name, name, "passed", "done", sessions=(SessionRecord("python", "passed", "done"),))


def test_the_baseline_is_the_first_that_accepts_the_most_sizes() -> None:
    found = timed(["h=33"], compile=Simulated(refused=["h=33"]), trace=Simulated(), onnx=Simulated())
    assert found.baseline == ("trace", "python")
    assert names(found) == ["compile", "trace", "onnx"]
    assert names(found, "h=33") == ["trace", "onnx"]
    assert found.timed(passed("compile")).sweep == {}
    assert found.timed(passed("onnx")).sweep["h=33"]["python"].speedup == 1


def test_a_size_that_the_baseline_refuses_is_not_timed() -> None:
    found = timed(["h=33", "h=35"], compile=Simulated(refused=["h=33"]), trace=Simulated(refused=["h=35", "h=33"]))
    assert found.untimed == {"h=33": "compile python, the baseline, does not accept this size"}
    assert names(found, "h=35") == ["compile"]


def test_another_baseline_takes_the_place_of_one_that_fails() -> None:
    found = timed(trace=Simulated(fails=[EXAMPLE]), onnx=Simulated())
    assert found.baseline == ("onnx", "python")
    assert names(found) == ["onnx"]
    failed = found.timed(passed("trace"))
    assert (failed.status, failed.stage, failed.reason) == ("failed", "time", "died at the example (python)")
    assert found.timed(passed("onnx")).status == "passed"


@pytest.mark.parametrize("points", [(), ("h=33",)])
def test_a_baseline_may_fail_while_samples_for_percentiles_are_taken(points: Sequence[str]) -> None:
    runs = runs_for(99)
    found = timed(points, runs, trace=Simulated(lasts=runs // 2), onnx=Simulated())
    assert found.baseline == ("onnx", "python")
    assert (found.timed(passed("trace")).status, found.timed(passed("trace")).stage) == ("failed", "time")
    onnx = found.timed(passed("onnx"))
    assert (onnx.status, onnx.timings["python"].speedup, [*onnx.sweep]) == ("passed", 1, [*points])
    assert onnx.timings["python"].p99_ms == 20.0


def test_every_artifact_may_fail() -> None:
    found = timed(trace=Simulated(fails=[EXAMPLE]), onnx=Simulated(fails=[EXAMPLE]))
    assert [found.timed(passed(name)).status for name in ("trace", "onnx")] == ["failed", "failed"]


@pytest.mark.parametrize("name", [EAGER, "trace"])
def test_every_artifact_is_called_often_enough_for_percentiles(name: str) -> None:
    sessions = {name: Simulated(), "onnx": Simulated()}
    found = timed(least_runs=runs_for(99), **sessions)
    assert found.baseline[0] == name
    assert sessions["onnx"].calls >= runs_for(99)
    assert (sessions[name].calls >= runs_for(99)) == (name != EAGER)


def test_timing_leaves_a_variant_failed_by_its_metric() -> None:
    record = VariantRecord("trace", "trace", "failed", "metric", "the metric is 0.5", remedy="ship another")
    record = VariantRecord(**{**vars(record), "sessions": passed("trace").sessions})
    found = timed(trace=Simulated()).timed(record)
    assert (found.status, found.stage, found.reason) == ("failed", "metric", "the metric is 0.5")
    assert found.remedy == "ship another"
    assert found.timings["python"].median_ms == 20
