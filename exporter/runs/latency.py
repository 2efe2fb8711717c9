"""Measure the latency of open sessions, at the example and at every point of a sweep, for the variants' records."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from exporter.core import causes, machine_load
from exporter.core.errors import ExporterError
from exporter.core.records import EAGER, SessionRecord, VariantRecord
from exporter.core.timing_records import MachineLoad, Timing
from exporter.evidence import benchmark, stats
from exporter.runs import session_checks
from exporter.workers.session.client import Session

Key = tuple[str, str]  # a variant's name and its session's kind
EXAMPLE = ""
MOST_SAMPLES = 1000  # recorded per window
FAILURE = ("status", "stage", "reason", "remedy", "cause")  # the fields of a record that describe its failure


@dataclass(frozen=True)
class At:
    """A session to time at one golden case."""

    session: Session
    case: str

    def time(self, runs: int) -> list[float]:
        """Return the milliseconds of each of `runs` calls."""
        return self.session.time(runs, self.case)


@dataclass(frozen=True)
class Measured:
    """The series of every session at every point, the example first.

    `untimed` maps each point at which nothing was timed to the reason.
    """

    baseline: Key
    points: dict[str, dict[Key, benchmark.Series]]
    warnings: tuple[str, ...] = ()
    untimed: dict[str, str] = field(default_factory=dict)
    machine: MachineLoad | None = None

    def samples(self) -> str:
        """Return samples in milliseconds as JSON, by variant, session and point: at most MOST_SAMPLES per window."""
        return json.dumps(
            {
                " ".join((*key, f"at {point}") if point else key): stats.thinned(
                    [*one.windows, *one.tail], MOST_SAMPLES
                )
                for point, series in self.points.items()
                for key, one in series.items()
            }
        )

    def timed(self, record: VariantRecord) -> VariantRecord:
        """Return the record with its timings. A session that failed while it was timed fails the variant.

        A variant that had failed although its sessions passed, such as by its metric, stays failed.
        """
        sweep = {point: timings for point in self.points if (timings := self._timings(record.name, point))}
        errors = {
            kind: (point, one.error)
            for point, series in self.points.items()
            for (name, kind), one in series.items()
            if name == record.name and one.error
        }
        sessions = tuple(_failed(s, *errors[s.session]) if s.session in errors else s for s in record.sessions)
        timings = sweep.pop(EXAMPLE, {})
        found = session_checks.conclude(replace(record, timings=timings, sweep=sweep), sessions)
        if found.status == "failed" or record.status != "failed":
            return found
        return replace(found, **{name: getattr(record, name) for name in FAILURE})

    def _timings(self, variant: str, point: str) -> dict[str, Timing]:
        series = self.points[point]
        return {
            kind: benchmark.timing(one, series[self.baseline])
            for (name, kind), one in series.items()
            if name == variant and one.windows
        }


@dataclass(frozen=True)
class Budget:
    """How long to measure: `seconds` of timed calls for each session at each point.

    At the example, each session except eager's is called at least `least_runs` times. Timing starts once the
    machine is quiet, or after `wait_quiet_s` seconds.
    """

    seconds: float
    least_runs: int = 0
    wait_quiet_s: float = 0.0


def measure(
    sessions: Mapping[Key, Session],
    points: Sequence[str],
    budget: Budget,
    baseline: Key,
    progress: Callable[[str, str], None],
) -> Measured:
    """Time the sessions in rotation: at the example, then at each other point those that have not failed.

    `progress` is called with a variant's name and its stage. Raises the baseline's error if it fails at the example.
    """
    left = dict(sessions)
    found: dict[str, dict[Key, benchmark.Series]] = {}
    report = functools.partial(progress, baseline[0])
    waited = machine_load.wait(budget.wait_quiet_s, report) if budget.wait_quiet_s else ""
    untimed: dict[str, str] = {}
    watch = machine_load.Watch()
    for point in (EXAMPLE, *points):
        if point in sessions[baseline].refused:
            untimed[point] = f"{' '.join(baseline)}, the baseline, does not accept this size"
            continue
        try:
            found[point] = _rotate(left, point, budget, baseline, progress)
        except ExporterError as error:
            if point == EXAMPLE:
                raise
            untimed[point] = f"{' '.join(baseline)}: {error}"
            continue
        left = {key: session for key, session in left.items() if key not in found[point] or not found[point][key].error}
    return Measured(baseline, found, (waited,) if waited else (), untimed, watch.load())


def measure_artifacts(
    sessions: Mapping[Key, Session], points: Sequence[str], budget: Budget, progress: Callable[[str, str], None]
) -> Measured:
    """Time the sessions of artifacts, where no eager session is the baseline.

    The baseline is the first session that accepts the most points. If it fails at the example, another takes its place.
    """
    left, failed = dict(sessions), dict[Key, benchmark.Series]()
    while left:
        baseline = min(left, key=lambda key: len(left[key].refused & {*points}))
        try:
            found = measure(left, points, budget, baseline, progress)
        except ExporterError as error:
            failed[baseline] = benchmark.Series(error=error)
            del left[baseline]
        else:
            found.points[EXAMPLE].update(failed)
            return found
    return Measured(next(iter(sessions)), {EXAMPLE: failed})


def _rotate(
    sessions: Mapping[Key, Session],
    point: str,
    budget: Budget,
    baseline: Key,
    progress: Callable[[str, str], None],
) -> dict[Key, benchmark.Series]:
    keys = {" ".join(key): key for key, session in sessions.items() if point not in session.refused}
    stage = f"time {point}".rstrip()
    series = benchmark.measure(
        {name: At(sessions[key], point) for name, key in keys.items()},
        budget.seconds,
        " ".join(baseline),
        lambda name: progress(keys[name][0], stage),
        {name: budget.least_runs for name, key in keys.items() if point == EXAMPLE and key[0] != EAGER},
    )
    return {keys[name]: one for name, one in series.items()}


def _failed(session: SessionRecord, point: str, error: ExporterError) -> SessionRecord:
    cause = causes.of(error)
    return replace(
        session,
        status="failed",
        stage="time",
        reason=f"{error} at {point}" if point else str(error),
        remedy=error.remedy or (cause.remedy if cause else ""),
        cause=cause.name if cause else "",
    )
