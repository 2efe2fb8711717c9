"""Check an existing bundle, and time it on request: first every hash, then every artifact against the golden.

This does not change the bundle and needs no model code.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from exporter import targets
from exporter.bundle import integrity, layout
from exporter.bundle.signing import Trust
from exporter.core import causes, environment, filesystem
from exporter.core.errors import ArtifactError
from exporter.core.option import pick
from exporter.core.progress import Listener
from exporter.core.records import Manifest, VariantRecord
from exporter.core.settings import SessionSettings, TimingSettings
from exporter.evidence import metrics
from exporter.runs import latency, session_checks
from exporter.runs.memory_needs import MemoryPlan
from exporter.runs.sessions import Sessions
from exporter.workers.children import Zygote

SKEW = timedelta(minutes=5)  # between two correct clocks; Kerberos tolerates the same: RFC 4120


@dataclass(frozen=True, kw_only=True)
class CheckOptions(TimingSettings, SessionSettings):
    """How sessions run, and whether they are timed."""

    timeout: float = 600.0
    bench: bool = False
    least_runs: int = 0
    trust: Trust = field(default_factory=Trust)


def run(place: Path, how: CheckOptions, listener: Listener) -> Manifest:
    """Return the manifest with the sessions' new results, without the timings of the export.

    Raises AlteredError, before it starts a process, if a file other than an artifact or the golden differs from the
    published one; ArtifactError if the golden differs, or if the bundle has no golden or no artifact. An artifact that
    differs is not loaded, and its variant's record says so.
    """
    evidence = integrity.examine(place, how.trust)
    if evidence.problems:
        evidence.require(evidence.problems | evidence.spoilt)
    manifest = layout.read_manifest(place)
    if manifest.golden is None:
        raise ArtifactError(f"{place} has no golden: its run ended before making one", "export again")
    for file in (manifest.golden.file, manifest.samples):
        if file is not None:
            layout.verify(place, file, evidence.digests.get(file.path))
    recorded = [v for v in manifest.variants if v.artifact is not None or _altered(evidence, v)]
    if not recorded:
        raise ArtifactError(f"{place} holds no artifact", "export again")
    with contextlib.ExitStack() as stack:
        zygote = stack.enter_context(Zygote())
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exporter-")))
        known = stack.enter_context(filesystem.plain(place.absolute()))
        current = _Recheck(evidence, manifest, how, listener, zygote, logs, known)
        stack.enter_context(current.sessions)
        return current.execute(recorded)


@dataclass
class _Recheck:
    """A check in progress."""

    evidence: integrity.Evidence
    manifest: Manifest
    how: CheckOptions
    listener: Listener
    zygote: Zygote
    logs: Path
    place: Path  # the path by which sessions access the bundle

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.manifest.device if self.how.bench else "cpu", only_passing=True)
        self.plans: dict[str, MemoryPlan] = {}  # by the variant's name
        self.options = pick(targets.Options, self.how, device=self.manifest.device, scratch=str(self.logs))

    def execute(self, recorded: list[VariantRecord]) -> Manifest:
        checked: list[VariantRecord] = []
        for record in recorded:
            self.listener.stage(record.name, "check")
            self.plans[record.name] = MemoryPlan(sum(file.bytes for file in record.files))
            checked.append(self._check(record, self.logs / f"{len(checked)}.log"))
            if not self._waits(record):
                self.listener.done(checked[-1])
        warnings = (*self.evidence.notes, *_ahead(self.manifest.created, datetime.now(UTC)))
        warnings += self.manifest.warnings
        warnings += (metrics.NOT_AGAIN,) if self.manifest.metric else ()
        warnings += tuple(
            f"{variant.name} is not checked: its export failed, and its files are in {layout.REJECTED}/"
            for variant in self.manifest.variants
            if variant.rejected
        )
        warnings = tuple(dict.fromkeys(warnings))
        threads, variants = self.how.threads, tuple(checked)
        manifest = replace(self.manifest, threads=threads, variants=variants, warnings=warnings, untimed={})
        return self._time(manifest, recorded) if self.how.bench else manifest

    def _check(self, record: VariantRecord, log: Path) -> VariantRecord:
        record = replace(record, timings={}, sweep={}, untimed="", reason="", remedy="", cause="", metric=None)
        if error := _altered(self.evidence, record):
            failed = replace(record, status="failed", stage="hash", sessions=(), parity=None)
            return replace(failed, reason=str(error), remedy=error.remedy)
        plan = self.plans[record.name]
        plan.begin(record.name)
        keep = self.how.bench and plan.keeps(record)
        if self.how.bench and not keep:
            record = replace(record, untimed="there is not enough memory to keep it open with the others")
        openers = session_checks.openers(self.zygote, self.place, record, self.options, log, self.how.timeout)
        results = self.sessions.judge(record, self.manifest.golden, openers, record.name if keep else "")
        return plan.explain(self._explained(session_checks.conclude(record, results)))

    def _explained(self, record: VariantRecord) -> VariantRecord:
        """Blame this CPU if it adds products of bytes less exactly than the one that the model was quantized on."""
        portable = self.manifest.request is not None and self.manifest.request.portable
        exact = self.manifest.environment.get("int8_sums", "exact") == "exact"
        made_for_this = portable or not exact or environment.adds_bytes_exactly()
        if record.cause != "too-coarse" or record.target != "onnx" or not record.quantized or made_for_this:
            return record
        cause = causes.named("saturated")
        reason = f"{cause.sentence}: {record.reason}"
        return replace(record, reason=reason, remedy=cause.remedy, cause=cause.name)

    def _time(self, manifest: Manifest, recorded: list[VariantRecord]) -> Manifest:
        """Return the manifest with timings of the variants that passed. No eager session is open."""
        manifest = replace(
            manifest,
            samples=None,
            machine=None,
            environment=environment.describe(targets.distributions(v.target for v in manifest.variants)),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        if not self.sessions.kept:
            return manifest
        points = tuple(manifest.points)[1:]
        least_runs = max(self.how.least_runs, manifest.goal.least_runs)
        budget = latency.Budget(self.how.time_budget, least_runs, self.how.wait_quiet)
        found = latency.measure_artifacts(self.sessions.kept, points, budget, self.listener.stage)
        timed = []
        for record, before in zip(manifest.variants, recorded, strict=True):
            if self._waits(record):
                timed_now = self.plans[record.name].explain(found.timed(record))
                record = replace(timed_now, notes=(*timed_now.notes, *self._before(before)))
                self.listener.done(record)
            timed.append(record)
        return replace(
            manifest,
            variants=tuple(timed),
            baseline=found.baseline[0],
            warnings=manifest.warnings + found.warnings,
            untimed=found.untimed,
            machine=found.machine,
        )

    def _waits(self, record: VariantRecord) -> bool:
        """Return whether the variant has a session that will be timed."""
        return any(name == record.name for name, _ in self.sessions.kept)

    def _before(self, record: VariantRecord) -> tuple[str, ...]:
        """Describe the latencies that were measured at export."""
        medians = ", ".join(f"{kind} {timing.median_ms:.3g} ms" for kind, timing in record.timings.items())
        machine = self.manifest.environment.get("cpu" if self.manifest.device == "cpu" else "gpu0", "")
        return (f"measured at export, on {machine}: {medians}",) if medians else ()


def _ahead(created: str, now: datetime) -> tuple[str, ...]:
    """Return a warning if the bundle was made in the future."""
    with contextlib.suppress(ValueError, OverflowError):
        if datetime.fromisoformat(created).astimezone(UTC) > now + SKEW:
            return (
                f"it was made at {created}, but the time here is {now.isoformat(timespec='seconds')}: "
                "one of the clocks is wrong",
            )
    return ()


def _altered(evidence: integrity.Evidence, record: VariantRecord) -> ArtifactError | None:
    """Return the error of the variant's first file that differs from its record, or None."""
    for file in record.files:
        try:
            layout.verify(evidence.place, file, evidence.digests.get(file.path))
        except ArtifactError as error:
            return error
    return None
