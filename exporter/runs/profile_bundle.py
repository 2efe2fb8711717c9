"""Profile variants of a bundle. This runs the model's code, which must be unchanged since the export.

Every variant has a session of its own. Latency is measured without the profiler, in rotation over all sessions, before
and after each session records its steps.

This file is long because it holds the whole sequence of a profile, to be read from top to bottom.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exporter import targets
from exporter.bundle import integrity, layout
from exporter.bundle.signing import Trust
from exporter.core import environment, machine_load, runners
from exporter.core.errors import ExporterError, UsageError
from exporter.core.profile_records import Origin, Profile, Profiled, Step, Steps
from exporter.core.records import EAGER, Manifest, VariantRecord
from exporter.core.timing_records import MachineLoad
from exporter.evidence import attribution, benchmark
from exporter.model import custom_ops
from exporter.runs import rebuild, session_checks
from exporter.runs.latency import EXAMPLE, At
from exporter.runs.request import Request, again
from exporter.workers.children import WITHOUT_GPU, Zygote
from exporter.workers.profile import Needed, Subject
from exporter.workers.session.client import PythonSession, Session

RUNS = 10  # calls under the profiler
PYTHON, NATIVE = "python", "native"
AGAIN = "profile again on a quiet machine (--wait-quiet SECONDS)"


@dataclass(frozen=True)
class Asked:
    """What to profile: variants by name (all that have an artifact if empty), and for how long to measure each.

    Before the first measurement, wait up to `wait_quiet` seconds for a quiet machine.
    """

    names: tuple[str, ...] = ()
    seconds: float = 4.0
    timeout: float = 1800.0
    wait_quiet: float = 0.0


@dataclass
class Running:
    """A variant with its open session, and how its steps are recorded."""

    name: str
    kind: str
    precision: str
    session: Session
    record: Callable[[], Steps]


def run(place: Path, asked: Asked, begun: Callable[[str], None]) -> tuple[Profile, dict[str, Steps]]:
    """Profile variants of the bundle `place`, and eager. Also return the steps of each, by its name.

    Raises UsageError if the bundle lacks a variant or if the recipe changed; AlteredError if a file differs from the
    published one.
    """
    with opened(place, asked, begun) as current:
        return current.execute(_chosen(current.manifest, asked.names))


@contextlib.contextmanager
def opened(place: Path, asked: Asked, begun: Callable[[str], None]) -> Iterator[Profiling]:
    """Begin a profile of the bundle `place`. Raises like `run`."""
    evidence = integrity.examine(place, Trust())
    evidence.require(evidence.problems | evidence.spoilt)
    manifest = layout.read_manifest(place)
    request = again(manifest)
    rebuild.require_materials(place, request)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exporter-")))
        zygote = stack.enter_context(Zygote(WITHOUT_GPU if request.device == "cpu" else {}))
        current = Profiling(place.absolute(), manifest, request, asked, folder, zygote, begun)
        stack.callback(current.close)
        yield current


def _chosen(manifest: Manifest, names: Sequence[str]) -> list[VariantRecord]:
    known = {one.name: one for one in manifest.variants if one.artifact or _is_live(one.name)}
    for name in names:
        if name != EAGER and name not in known:
            raise UsageError(f"the bundle has no artifact of {name}", f"choose from {', '.join((EAGER, *known))}")
    return [one for name, one in known.items() if name in names or not names]


def _is_live(name: str) -> bool:
    """Return whether a row is compiled in its session; False for eager, and for targets that are not installed."""
    try:
        return name != EAGER and any(map(targets.is_live, targets.parse(name)))
    except UsageError:
        return False


@dataclass
class Profiling:
    """A profile in progress."""

    place: Path
    manifest: Manifest
    request: Request
    asked: Asked
    folder: Path
    zygote: Zygote
    begun: Callable[[str], None]

    def __post_init__(self) -> None:
        self.job = self.request.job(self.folder)
        self.golden = layout.golden(self.place)
        self.failed: list[Profiled] = []
        self.opened: list[Session] = []
        self.busiest: MachineLoad | None = None  # the largest other load during the timings, if any was busy

    def close(self) -> None:
        for session in self.opened:
            session.close()

    def execute(self, records: Sequence[VariantRecord]) -> tuple[Profile, dict[str, Steps]]:
        self.begun("load model")
        needed: Needed = self.zygote.run(
            "model",
            "exporter.workers.profile.child:need",
            {"job": self.job, "golden": self.golden, "precisions": self.request.precisions},
            self.log(EAGER),
            self.asked.timeout,
        )
        running = []
        eager = VariantRecord(EAGER, EAGER, "pending")
        for record in (eager, *records):
            self.begun(f"open {record.name}")
            try:
                running.append(self._open(record, needed))
            except ExporterError as error:
                self.fail(record.name, PYTHON, error)
        steps, series = self.measured(running)
        model = attribution.Model(needed.eager, needed.nodes, needed.peaks)
        found = self.profile(running, steps, series, model)
        if needed.refused:
            note = f"steps are matched with eager's operators, because there is no exported program: {needed.refused}"
            found = replace(found, notes=(*found.notes, note))
        return found, {name: model.resolved(one) for name, one in steps.items()}

    def fail(self, name: str, kind: str, error: ExporterError) -> None:
        """Note why a variant has no profile."""
        self.failed.append(Profiled(name, kind, reason=str(error), remedy=error.remedy))

    def log(self, name: str) -> Path:
        """Return the path of a log."""
        return self.folder / f"{layout.stem(name)}.log"

    def _open(self, record: VariantRecord, needed: Needed) -> Running:
        """Open the variant's sessions: one that is timed, and where that cannot report its steps, one that can."""
        (variant,) = targets.parse(record.name) if record.name != EAGER else (targets.Variant(EAGER),)
        options = self.request.options(self.job, variant)
        if record.artifact is None:
            work = self.folder / layout.stem(record.name)
            (work / "cache").mkdir(parents=True)
            options = replace(options, profiled=True, scratch=str(work), cache=str(work / "cache"))
            job = replace(self.job, options=options)
            arguments = {"subject": Subject(job, variant.target, self.golden, needed.prepared)}
            session = self.start(self.child(record.name, "exporter.workers.profile.child:serve", arguments))
            return Running(record.name, PYTHON, variant.base, session, lambda: session.profile(RUNS))
        kinds = dict(
            session_checks.openers(self.zygote, self.place, record, options, self.log(record.name), self.asked.timeout)
        )
        facts = targets.facts(variant.target)
        if facts.nodes and NATIVE in kinds and self.request.device == "cpu":  # its nodes would wait for the GPU
            session = self.start(kinds[NATIVE]())
            return Running(record.name, NATIVE, variant.base, session, lambda: self._native(record, options))
        session = self.start(kinds[PYTHON]())
        if not facts.instrumented:
            return Running(record.name, PYTHON, variant.base, session, lambda: session.profile(RUNS))
        self.begun(f"build {record.name}")
        watched = self.start(self._instrumented(record, variant, options, needed))
        return Running(record.name, PYTHON, variant.base, session, lambda: watched.profile(RUNS))

    def _instrumented(
        self, record: VariantRecord, variant: targets.Variant, options: targets.Options, needed: Needed
    ) -> Session:
        """Build the variant again so that its kernels report to the profiler, and open a session of that."""
        work = self.folder / layout.stem(record.name)
        work.mkdir()
        job = replace(self.job, options=replace(options, profiled=True))
        path = work / variant.artifact
        subject = Subject(job, variant.target, self.golden, needed.prepared, path)
        self.zygote.run(
            f"build {record.name}",
            "exporter.workers.profile.child:build",
            {"subject": subject},
            self.log(record.name),
            self.asked.timeout,
        )
        arguments = {
            "target": variant.target,
            "path": str(path),
            "golden_path": str(self.golden),
            "recorded": record.contract,
            "options": job.options,
        }
        return self.child(record.name, "exporter.workers.session.server:serve_artifact", arguments)

    def child(self, name: str, function: str, arguments: dict[str, Any]) -> Session:
        """Return a session in a new process, which runs `function`."""
        return PythonSession(
            self.zygote.spawn(f"{name} (python)", function, arguments, self.log(name)), self.asked.timeout
        )

    def start(self, session: Session) -> Session:
        """Wait until the session is ready. It is closed at the end of the profile."""
        self.opened.append(session)
        session.start()
        return session

    def _native(self, record: VariantRecord, options: targets.Options) -> Steps:
        """Return the steps that exporter-run times."""
        assert record.artifact is not None
        assert record.contract is not None
        golden = session_checks.converted(self.zygote, self.golden, self.log(record.name))
        words = [str(environment.find_runner()), "profile", str(self.place / record.artifact.path), "--json"]
        words += ["--golden", str(golden), "--runs", str(RUNS)]
        words += ["--device", options.device, "--threads", str(options.threads)]
        words += custom_ops.runner_words(record.contract.ops, options.ops_libs)
        nodes = json.loads(runners.call(words, self.asked.timeout))["nodes"]
        steps = [
            Step(one["op"], one["start_us"], one["own_us"], origins=(Origin(one["module"], one["place"]),))
            for one in nodes
        ]
        return Steps(tuple(steps), max((one["start_us"] + one["duration_us"] for one in nodes), default=0.0))

    def measured(self, running: Sequence[Running]) -> tuple[dict[str, Steps], dict[str, benchmark.Series]]:
        """Time every session in rotation, and record the steps of each in the middle of that.

        Return those of the variants that did not fail.
        """
        if self.asked.wait_quiet:
            machine_load.wait(self.asked.wait_quiet, self.begun)
        before = self._timed(running)
        steps: dict[str, Steps] = {}
        for one in running:
            if one.name in before:
                self.begun(f"profile {one.name}")
                try:
                    steps[one.name] = one.record()
                except ExporterError as error:
                    self.fail(one.name, one.kind, error)
        after = self._timed([one for one in running if one.name in steps])
        for name, series in after.items():
            series.windows.extend(before[name].windows)
        return {name: steps[name] for name in after}, after

    def _timed(self, running: Sequence[Running]) -> dict[str, benchmark.Series]:
        """Time the sessions for half of the time. Return the series of those that did not fail."""
        left = list(running)
        while left:
            subjects = {one.name: At(one.session, EXAMPLE) for one in left}
            watch = machine_load.Watch()
            try:
                found = benchmark.measure(subjects, self.asked.seconds / 2, left[0].name, self._say)
            except ExporterError as error:  # of the first, to which the others are compared
                self.fail(left[0].name, left[0].kind, error)
                left = left[1:]
                continue
            self.busiest = machine_load.busier(self.busiest, watch.load())
            for one in left:
                failed = found[one.name].error
                if failed:
                    self.fail(one.name, one.kind, failed)
            return {name: one for name, one in found.items() if not one.error}
        return {}

    def _say(self, name: str) -> None:
        self.begun(f"time {name}")

    def profile(
        self,
        running: Sequence[Running],
        steps: dict[str, Steps],
        series: dict[str, benchmark.Series],
        model: attribution.Model,
        baseline: str = EAGER,
    ) -> Profile:
        """Return the record of what was measured. `baseline` is the name of the eager variant."""
        shown = [one for one in running if one.name in steps]
        timings = {one.name: benchmark.timing(series[one.name], series[shown[0].name]) for one in shown}
        spent = {one.name: attribution.spend(model, steps[one.name], timings[one.name].median_ms) for one in shown}
        lines = attribution.lines(model, list(spent.values()))
        variants = []
        for one in shown:
            own, timing = spent[one.name], timings[one.name]
            variants.append(
                Profiled(
                    one.name,
                    one.kind,
                    timing.median_ms,
                    timing.ci95_ms,
                    attribution.times(lines, own, model.peaks, one.precision),
                    own.outside_ms,
                    own.elsewhere_ms,
                    sum(own.copy_ms.values()),
                    tuple(dict.fromkeys(step.name for step in steps[one.name].steps if step.fallback)),
                    own.slowed,
                    notes=steps[one.name].notes,
                )
            )
        on_cpu = self.request.device == "cpu"
        lower = tuple(p for p in attribution.LOWER if p != "bf16" or not on_cpu or environment.computes_bf16())
        busy = (f"the machine was busy during timing: {self.busiest.describe()}; {AGAIN}",) if self.busiest else ()
        return Profile(
            self.manifest.model.name,
            self.request.device,
            self.job.options.threads,
            self.manifest.golden.cases[0].name if self.manifest.golden else "",
            model.peaks,
            tuple(line for line, _ in lines),
            (*variants, *self.failed),
            attribution.advice([line for line, _ in lines], variants, baseline, self.busiest, lower),
            environment=environment.describe(targets.distributions(one.name.partition(":")[0] for one in running)),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            notes=busy,
        )
