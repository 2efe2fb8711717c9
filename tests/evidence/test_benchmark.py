"""Measurements of subjects with known latencies; no clock is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from exporter.core.errors import JobError
from exporter.core.timing_records import runs_for
from exporter.evidence import benchmark
from exporter.evidence.benchmark import FEWEST_WINDOWS, MAX_WINDOWS, MIN_WINDOWS, measure


class Fake:
    """Returns at once, with latencies computed from the number of the call."""

    def __init__(self, latency: Callable[[int], float], journal: list[str] | None = None, name: str = "") -> None:
        self.latency, self.calls, self.asked = latency, 0, list[int]()
        self.journal, self.name = journal if journal is not None else [], name

    def time(self, runs: int) -> list[float]:
        self.asked.append(runs)
        self.journal.append(self.name)
        samples = [self.latency(self.calls + i) for i in range(runs)]
        self.calls += runs
        return samples


def constant(ms: float) -> Fake:
    return Fake(lambda call: ms)


def noisy(ms: float) -> Fake:
    """Every other window is four times as slow, so no interval can be narrow."""
    fake = Fake(lambda call: ms)
    fake.latency = lambda call: ms * (1 + len(fake.asked) % 2 * 3)
    return fake


def test_steady_subjects_stop_early_and_are_stable() -> None:
    found = measure({"eager": constant(4.0), "trace": constant(2.0)}, 60.0, "eager")
    assert all(one.stable for one in found.values())
    assert all(len(one.windows) == MIN_WINDOWS for one in found.values())
    timing = benchmark.timing(found["trace"], found["eager"])
    assert (timing.median_ms, timing.speedup, timing.stable, timing.outliers) == (2.0, 2.0, True, 0)
    assert timing.ci95_ms == (2.0, 2.0)
    assert timing.speedup_ci95 == (2.0, 2.0)
    assert timing.runs == sum(map(len, found["trace"].windows))


def test_windows_are_long_compared_to_the_clock() -> None:
    subject = constant(0.5)
    measure({"eager": subject}, 60.0, "eager")
    assert subject.asked[-1] - 1 == round(benchmark.WINDOW_MS / 0.5)


def test_slow_subjects_get_one_run_per_window() -> None:
    subject = constant(5000.0)
    measure({"eager": subject}, 1.0, "eager")
    assert subject.asked[-1] == 2


def test_tiny_latencies_do_not_divide_by_zero() -> None:
    found = measure({"eager": constant(1e-9)}, 0.001, "eager")
    assert len(found["eager"].windows) >= FEWEST_WINDOWS


def test_subjects_take_turns() -> None:
    journal: list[str] = []
    subjects = {name: Fake(lambda call: 10.0, journal, name) for name in ("eager", "a", "b")}
    measure(subjects, 60.0, "eager")
    timed = journal[-3 * MIN_WINDOWS :]
    assert timed == ["eager", "a", "b"] * MIN_WINDOWS


def test_the_budget_ends_unstable_measurements() -> None:
    found = measure({"eager": constant(10.0), "noisy": noisy(10.0)}, 2.0, "eager")
    assert not found["noisy"].stable
    assert found["noisy"].spent_ms >= 2000
    assert len(found["noisy"].windows) < MAX_WINDOWS
    assert not benchmark.timing(found["noisy"], found["eager"]).stable


def test_slow_subjects_get_the_minimum_number_of_windows() -> None:
    subjects = {"eager": constant(10_000.0), "trace": constant(5_000.0), "noisy": noisy(5_000.0)}
    found = measure(subjects, 5.0, "eager")
    assert {name: fake.calls for name, fake in subjects.items()} == dict.fromkeys(subjects, 2 + 2 * FEWEST_WINDOWS)
    assert {name: one.stable for name, one in found.items()} == {"eager": True, "trace": True, "noisy": False}


def test_the_budget_is_shared() -> None:
    """A fast subject that stays unstable does not make a slow one use its whole budget."""
    found = measure({"eager": constant(400.0), "noisy": noisy(10.0)}, 5.0, "eager")
    spent = sum(one.spent_ms for one in found.values())
    assert 10_000 <= spent < 10_000 + 2 * 400.0 + 7 * 40.0
    assert not found["noisy"].stable


def test_the_budget_share_of_a_failed_subject_is_dropped() -> None:
    found = measure({"eager": noisy(10.0), "dying": Dying(0)}, 2.0, "eager")
    assert 2000 <= found["eager"].spent_ms < 2000 + 7 * 40.0


def test_the_number_of_windows_is_limited() -> None:
    found = measure({"eager": noisy(10.0)}, 1e9, "eager")
    assert len(found["eager"].windows) == MAX_WINDOWS


def test_the_first_call_of_a_window_is_discarded() -> None:
    fake = Fake(lambda call: 1.0)
    starts = set()

    def latency(call: int) -> float:
        return 1000.0 if call in starts else 1.0

    original = fake.time

    def time(runs: int) -> list[float]:
        starts.add(fake.calls)
        return original(runs)

    fake.latency, fake.time = latency, time  # type: ignore[method-assign]
    found = measure({"eager": fake}, 60.0, "eager")
    assert max(max(window) for window in found["eager"].windows) == 1.0


def test_warm_up_continues_until_latency_settles() -> None:
    """The first calls, which get faster and faster, are not among the samples."""
    found = measure({"eager": Fake(lambda call: max(10.0, 40.0 * 0.97**call))}, 60.0, "eager")
    assert {sample for window in found["eager"].windows for sample in window} == {10.0}


class Dying:
    def __init__(self, after: int) -> None:
        self.left = after

    def time(self, runs: int) -> list[float]:
        self.left -= 1
        if self.left < 0:
            raise JobError("it was ended by SIGSEGV")
        return [1.0] * runs


@pytest.mark.parametrize("after", [0, 2, 8])
def test_a_failed_subject_does_not_affect_the_others(after: int) -> None:
    found = measure({"eager": constant(1.0), "dying": Dying(after), "trace": constant(1.0)}, 60.0, "eager")
    assert str(found["dying"].error) == "it was ended by SIGSEGV"
    assert found["dying"].windows == []
    assert found["trace"].stable


@pytest.mark.parametrize("after", [0, 8])
def test_a_failed_baseline_raises(after: int) -> None:
    with pytest.raises(JobError, match="SIGSEGV"):
        measure({"eager": Dying(after), "trace": constant(1.0)}, 60.0, "eager")


def test_progress_is_reported() -> None:
    heard: list[str] = []
    measure({"eager": constant(1.0), "trace": constant(1.0)}, 60.0, "eager", heard.append)
    assert set(heard) == {"eager", "trace"}


def drawn(draw: Callable[[np.random.Generator], float], seed: int) -> Fake:
    """Return a subject with latencies drawn from a distribution; equal seeds give equal latencies."""
    generator = np.random.default_rng(seed)
    return Fake(lambda call: draw(generator))


def bimodal(ms: float) -> Callable[[np.random.Generator], float]:
    """Every tenth call takes three times as long."""
    return lambda generator: ms * float(generator.normal(3 if generator.random() < 0.1 else 1, 0.01))


def heavy_tailed(ms: float) -> Callable[[np.random.Generator], float]:
    """A Pareto tail without a variance; the Pareto part has a median of 2 ** (1 / 1.5) times its minimum."""
    return lambda generator: ms * (1 + 0.02 * (float(generator.pareto(1.5)) + 1))


class Drifting:
    """Makes subjects of a machine that slows down to half its speed; they share its clock."""

    def __init__(self) -> None:
        self.spent = 0.0

    def subject(self, ms: float, seed: int) -> Fake:
        generator = np.random.default_rng(seed)

        def latency(call: int) -> float:
            taken = ms * (1 + min(self.spent / 20_000, 1.0)) * float(generator.normal(1, 0.01))
            self.spent += taken
            return taken

        return Fake(latency)


SHAPES = {
    "constant": (lambda ms: lambda generator: ms, 1.0),
    "bimodal": (
        bimodal,
        float(np.median([bimodal(1.0)(g) for g in [np.random.default_rng(9)] for _ in range(100_000)])),
    ),
    "heavy-tailed": (heavy_tailed, 1 + 0.02 * 2 ** (1 / 1.5)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_known_medians_and_ratios_are_measured_within_one_percent(shape: str) -> None:
    draw, factor = SHAPES[shape]
    found = measure({"eager": drawn(draw(8.0), 1), "trace": drawn(draw(5.0), 2)}, 5.0, "eager")
    timing = benchmark.timing(found["trace"], found["eager"])
    assert timing.median_ms == pytest.approx(5.0 * factor, rel=0.01)
    assert timing.speedup == pytest.approx(1.6, rel=0.01)
    low, high = timing.speedup_ci95
    assert low <= timing.speedup <= high


def test_common_drift_does_not_change_the_ratio() -> None:
    machine = Drifting()
    found = measure({"eager": machine.subject(8.0, 1), "trace": machine.subject(5.0, 2)}, 10.0, "eager")
    timing = benchmark.timing(found["trace"], found["eager"])
    assert timing.speedup == pytest.approx(1.6, rel=0.01)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_difference_of_five_percent_is_detected(shape: str) -> None:
    draw, _ = SHAPES[shape]
    for seed in range(20):
        found = measure({"eager": drawn(draw(8.0), seed), "trace": drawn(draw(7.6), 100 + seed)}, 5.0, "eager")
        assert benchmark.timing(found["trace"], found["eager"]).speedup > 1, seed


@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_contain_the_true_median(shape: str) -> None:
    """In 95% of cases; 88 allows for chance in a hundred trials."""
    draw, factor = SHAPES[shape]
    held = 0
    for seed in range(100):
        found = measure({"eager": drawn(draw(5.0), seed)}, 5.0, "eager")
        low, high = benchmark.timing(found["eager"], found["eager"]).ci95_ms
        held += low - 1e-9 <= 5.0 * factor <= high + 1e-9
    assert held >= 88


@pytest.mark.parametrize("shape", SHAPES)
def test_identical_subjects_rarely_seem_different(shape: str) -> None:
    draw, _ = SHAPES[shape]
    different = 0
    for seed in range(100):
        found = measure({"a": drawn(draw(5.0), seed), "b": drawn(draw(5.0), 1000 + seed)}, 5.0, "a")
        a, b = (benchmark.timing(found[name], found["a"]).ci95_ms for name in "ab")
        different += a[1] < b[0] or b[1] < a[0]
    assert different <= 5


def test_percentiles_need_ten_samples_beyond_them() -> None:
    """The p99 of 20 samples would be their maximum."""
    for runs, known in ((20, (False, False)), (99, (False, False)), (100, (True, False)), (1000, (True, True))):
        one = benchmark.Series(windows=[[float(i) for i in range(runs)]])
        timing = benchmark.timing(one, one)
        assert (timing.p90_ms is not None, timing.p99_ms is not None) == known
    assert (runs_for(90), runs_for(99), runs_for(99.9)) == (100, 1000, 10_000)


def test_requested_percentiles_get_enough_samples() -> None:
    """Even beyond the budget; other and failed subjects get no more calls."""
    subjects = {"eager": constant(900.0), "slow": constant(700.0), "fast": constant(0.05)}
    found = measure(subjects, 1.0, "eager", least_runs=dict.fromkeys(("slow", "fast"), runs_for(99)))
    assert found["eager"].count < 20
    assert found["slow"].count >= 1000
    assert found["fast"].tail == []
    assert len(found["slow"].windows) == len(found["eager"].windows)
    timing = benchmark.timing(found["slow"], found["eager"])
    assert (timing.p99_ms, timing.runs) == (700.0, found["slow"].count)


def test_a_failure_while_measuring_percentiles_does_not_affect_the_others() -> None:
    def breaks(call: int) -> float:
        if call > 100:
            raise JobError("gone")
        return 700.0

    subjects = {"eager": constant(900.0), "a": Fake(breaks), "b": constant(700.0)}
    found = measure(subjects, 1.0, "eager", least_runs={"a": 1000, "b": 1000})
    assert str(found["a"].error) == "gone"
    assert found["b"].count >= 1000
