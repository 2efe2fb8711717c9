"""Measures the latency of several sessions in rotation, so that drift of the machine affects all of them equally.

A subject is any object with a `time(runs)` method that returns milliseconds. The tests use fakes with known latencies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from exporter.core.errors import ExporterError
from exporter.core.timing_records import Timing, runs_for
from exporter.evidence import stats

WINDOW_MS = 60.0  # long compared to clock and scheduler granularity, short compared to the machine's drift
WARMUP_SHARE = 0.3  # maximum share of the budget
MIN_WINDOWS, MAX_WINDOWS = 10, 300
FEWEST_WINDOWS = 5  # also if the budget is spent; min and max of 5 enclose the median in 94% of cases, of 3 in 75%
LEAST_OF_TAIL = 10  # minimum number of calls in a window that serves only percentiles
PRECISION = 0.03  # relative half-width of the ratio's interval at which a measurement counts as stable


class Timed(Protocol):
    """Anything that can be timed."""

    def time(self, runs: int) -> list[float]:
        """Return the latency of each of `runs` calls, in milliseconds."""
        ...


@dataclass
class Series:
    """The measurements of one subject: windows of samples in milliseconds, and the time spent on them."""

    runs: int = 1
    windows: list[list[float]] = field(default_factory=list)
    tail: list[list[float]] = field(default_factory=list)  # further windows, used only for percentiles
    spent_ms: float = 0.0
    stable: bool = False
    error: ExporterError | None = None

    @property
    def count(self) -> int:
        """Return the number of samples kept."""
        return sum(map(len, (*self.windows, *self.tail)))

    def take(self, subject: Timed, keep: bool) -> float:
        """Time one window and return its median in milliseconds.

        The first call counts toward the budget but is discarded, because it runs with cold caches.
        """
        samples = subject.time(self.runs + 1)
        self.spent_ms += sum(samples)
        if keep:
            self.windows.append(samples[1:])
        return stats.median(samples[1:])


def measure(
    subjects: Mapping[str, Timed],
    budget_s: float,
    baseline: str,
    progress: Callable[[str], None] = lambda name: None,
    least_runs: Mapping[str, int] | None = None,
) -> dict[str, Series]:
    """Time the subjects in rotation until each one's ratio to `baseline` is known to ±3% or the budget is spent.

    The budget is `budget_s` seconds of timed calls per subject, on average. A subject that is too slow for the budget
    still gets FEWEST_WINDOWS windows of one call each; it counts as stable if its interval lies within ±3%.

    For percentiles, the subjects in `least_runs` continue until they have that many samples.

    A subject that fails leaves the rotation, and its exception is stored in `error`. An ExporterError raised by
    `baseline` propagates.
    """
    series = {name: Series() for name in subjects}
    budget_ms = budget_s * 1000

    for name, subject in subjects.items():
        progress(name)
        one = series[name]
        _attempt(one, name == baseline, functools.partial(_warm_up, subject, one, budget_ms * WARMUP_SHARE))
    while not _finished(series.values(), budget_ms):
        for name, subject in subjects.items():
            progress(name)
            _attempt(series[name], name == baseline, functools.partial(series[name].take, subject, True))
        for one in series.values():
            one.stable = _stable(one, series[baseline])
    _lengthen(series, subjects, baseline, least_runs or {}, progress)
    return series


def _lengthen(
    series: Mapping[str, Series],
    subjects: Mapping[str, Timed],
    baseline: str,
    least_runs: Mapping[str, int],
    progress: Callable[[str], None],
) -> None:
    """Time more windows in rotation for subjects with too few samples.

    Windows of slow subjects hold one call each; here they hold LEAST_OF_TAIL.
    """
    while short := [name for name in least_runs if not series[name].error and series[name].count < least_runs[name]]:
        for name in short:
            progress(name)
            one = series[name]
            one.runs = max(one.runs, LEAST_OF_TAIL)
            _attempt(one, name == baseline, functools.partial(_take_tail, subjects[name], one))


def _take_tail(subject: Timed, one: Series) -> None:
    one.tail.append(subject.time(one.runs + 1)[1:])


def _attempt(one: Series, fatal: bool, act: Callable[[], object]) -> None:
    if one.error:
        return
    try:
        act()
    except ExporterError as error:
        if fatal:
            raise
        one.error, one.windows = error, []


def _warm_up(subject: Timed, one: Series, budget_ms: float) -> None:
    medians = [one.take(subject, keep=False)]
    while one.spent_ms < budget_ms and not (len(medians) > 3 and stats.settled(medians)):
        one.runs = max(1, round(WINDOW_MS / max(medians[-1], 1e-3)))
        medians.append(one.take(subject, keep=False))
    one.runs = max(1, round(WINDOW_MS / max(medians[-1], 1e-3)))
    one.spent_ms = 0.0


def _finished(series: Iterable[Series], budget_ms: float) -> bool:
    alive = [one for one in series if not one.error]
    count = min(len(one.windows) for one in alive)
    if count >= MAX_WINDOWS or (count >= MIN_WINDOWS and all(one.stable for one in alive)):
        return True
    return count >= FEWEST_WINDOWS and sum(one.spent_ms for one in alive) >= budget_ms * len(alive)


def _stable(one: Series, baseline: Series) -> bool:
    if len(one.windows) < FEWEST_WINDOWS:
        return False
    if one is baseline:  # its ratio to itself is always 1, so use its own median
        low, high = stats.median_interval(one.windows)
    else:
        low, high = stats.ratio_interval(baseline.windows, one.windows)
    return (high - low) / (high + low) <= PRECISION


def timing(one: Series, baseline: Series) -> Timing:
    """Return the statistics of one series; `speedup` is relative to `baseline`."""
    samples = [sample for window in (*one.windows, *one.tail) for sample in window]
    return Timing(
        median_ms=stats.median([stats.median(window) for window in one.windows]),
        p90_ms=_percentile(samples, 90),
        p99_ms=_percentile(samples, 99),
        min_ms=min(samples),
        max_ms=max(samples),
        ci95_ms=stats.median_interval(one.windows),
        runs=len(samples),
        stable=one.stable,
        speedup=stats.ratio(baseline.windows, one.windows),
        speedup_ci95=stats.ratio_interval(baseline.windows, one.windows),
        outliers=stats.outliers(samples),
    )


def _percentile(samples: list[float], q: float) -> float | None:
    return stats.percentile(samples, q) if len(samples) >= runs_for(q) else None
