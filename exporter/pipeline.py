"""The order of the steps: prepare, export, check, time. Nothing else decides it, and nothing here computes.

Exports run side by side; so do checks when nothing is timed. Otherwise sessions are opened one after the other once the
exports are done, for their first call is measured too.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from exporter import __version__, builds, bundle, causes, checks, diagnosis, environment, latency, targets
from exporter.errors import ExporterError, JobError, UsageError
from exporter.isolate import BACKGROUND, SIDE_BY_SIDE, Child, Zygote
from exporter.job import Findings, Job, Prepared
from exporter.recipes import Source
from exporter.records import (
    EAGER,
    FP32,
    Goal,
    GoldenRecord,
    Lifecycle,
    Manifest,
    ModelRecord,
    Range,
    SessionRecord,
    VariantRecord,
)
from exporter.session.client import Session

CACHE = "cache"  # the compilers' part of a session's temporary files


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    model: str
    source: Source
    variants: tuple[targets.Variant, ...]
    out: Path
    device: str = "cpu"
    sizes: dict[str, int] = field(default_factory=dict)
    sweep: dict[str, tuple[int, ...]] = field(default_factory=dict)  # sizes that are timed, the example's first
    ranges: dict[str, Range] = field(default_factory=dict)
    dynamic: str = "all"
    weights: str = "auto"
    seed: int = 0
    threads: int = 1
    time_budget: float = 5.0
    timeout: float = 1800.0
    bench: bool = True
    memory_limit_gb: float = 0.0
    rtol: float | None = None
    atol: float | None = None
    opset: int | None = None
    allow_cpu_fallback: bool = False
    fullgraph: bool = False
    portable: bool = False
    ops_libs: tuple[str, ...] = ()
    command: str = ""
    asked: str = ""  # the model as the user wrote it, for commands that reproduce a step
    warnings: tuple[str, ...] = ()  # about the request itself
    goal: Goal = field(default_factory=Goal)

    @property
    def precisions(self) -> tuple[str, ...]:
        """All that a variant computes in, but the usual one."""
        return tuple(dict.fromkeys(v.precision for v in self.variants if v.precision != FP32))

    def reproduce(self, name: str) -> str:
        """A command that runs one variant again, with every option that is not the default."""
        if self.source.kind == "memory":
            return f"exporter.export(model, inputs, targets={name!r}, out={f'{self.out}-again'!r})"
        words = ["exporter", "export", self.asked or self.model, "--targets", name, "--device", self.device]
        words += ["--seed", str(self.seed), "--weights", self.weights, "--threads", str(self.threads)]
        for size, value in self.sizes.items():
            others = (other for other in self.sweep.get(size, ()) if other != value)
            words += ["--size", f"{size}={','.join(map(str, (value, *others)))}"]
        for size, bounds in self.ranges.items():
            if bounds.choices:
                words += ["--specialize", f"{size}={','.join(map(str, bounds.choices))}"]
            else:
                words += ["--size", f"{size}={bounds.min}..{bounds.max}"]
        words += ["--dynamic", self.dynamic] if self.dynamic != "all" else []
        words += ["--task", self.source.task] if self.source.task else []
        words += ["--checkpoint", self.source.checkpoint] if self.source.checkpoint else []
        words += ["--allow-partial"] if self.source.allow_partial else []
        if self.source.inputs_file:
            words += ["--inputs", self.source.inputs_file]
        for option, given in (("--rtol", self.rtol), ("--atol", self.atol), ("--opset", self.opset)):
            words += [] if given is None else [option, str(given)]
        words += ["--allow-cpu-fallback"] if self.allow_cpu_fallback else []
        words += ["--fullgraph"] if self.fullgraph else []
        words += ["--portable"] if self.portable else []
        words += [word for file in self.ops_libs for word in ("--ops-lib", file)]
        words += ["--memory-limit", str(self.memory_limit_gb)] if self.memory_limit_gb else []
        words += ["--time-budget", f"{self.time_budget:g}"] if self.time_budget != Request.time_budget else []
        words += ["--timeout", f"{self.timeout:g}"] if self.timeout != Request.timeout else []
        words += [] if self.bench else ["--no-bench"]
        return shlex.join([*words, "--out", f"{self.out}-again", "-v"])


class Listener:
    """Hears of progress; this one ignores it."""

    def stage(self, variant: str, stage: str) -> None:
        """A variant has come to a stage."""

    def done(self, record: VariantRecord) -> None:
        """A variant has passed or failed."""


def run(request: Request, listener: Listener | None = None) -> tuple[Manifest, Path]:
    """Do all that was asked; returns the manifest and where the bundle is.

    A variant that fails is a row. Raises UsageError before anything is written when the request cannot be met. Whatever
    else interrupts the run (KeyboardInterrupt included) stops the children and publishes what was finished.
    """
    if "tf32" in request.precisions and request.device == "cpu":
        raise UsageError("tf32 is computed by NVIDIA's GPUs alone", "leave it out, or give --device cuda")
    if request.fullgraph and not any(map(targets.is_live, request.variants)):
        raise UsageError("--fullgraph is for what is compiled just in time", "leave it out, or ask for compile:default")
    if request.portable:
        builds.require_portable()
    with contextlib.ExitStack() as stack:
        zygote = stack.enter_context(Zygote(SIDE_BY_SIDE))
        alone = stack.enter_context(Zygote()) if request.bench else zygote
        staging = stack.enter_context(bundle.stage(request.out))
        current = _Run(request, zygote, alone, staging, listener or Listener())
        try:
            current.execute()
        except OSError as error:
            current.close_sessions()
            raise bundle.disk_error(error, request.out) from error
        except BaseException as error:
            current.stop()
            if current.finish("interrupted"):
                error.add_note(f"what was finished is in {staging.publish_interrupted()}")
            raise
        if current.prepared:
            current.finish("complete")
            return current.manifest, staging.publish()
        current.finish("failed")
        return current.manifest, staging.publish_interrupted()


class _Run:
    """One run in progress: the manifest so far, the open sessions."""

    def __init__(
        self, request: Request, zygote: Zygote, alone: Zygote, staging: bundle.Staging, listener: Listener
    ) -> None:
        """Jobs come from `zygote`; sessions that are timed, from `alone`, once no job runs any more."""
        self.request, self.zygote, self.alone, self.staging, self.listener = request, zygote, alone, staging, listener
        self.work = staging.root / ".work"
        self.work.mkdir()
        self.options = targets.Options(
            device=request.device,
            threads=request.threads,
            opset=request.opset,
            allow_cpu_fallback=request.allow_cpu_fallback,
            portable=request.portable,
            memory_limit=round(request.memory_limit_gb * 1e9),
            ops_libs=request.ops_libs,
            scratch=str(self.work),
            fullgraph=request.fullgraph,
        )
        self.job = Job(
            request.model,
            request.source,
            request.weights,
            request.seed,
            request.sizes,
            self.work,
            self.options,
            request.ranges,
            request.dynamic,
            request.sweep,
        )
        self.manifest = Manifest(
            model=ModelRecord(request.model, request.asked or request.source.place, request.weights, request.seed),
            device=request.device,
            threads=request.threads,
            command=request.command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            exporter=__version__,
            environment=environment.describe(),
            warnings=request.warnings,
            goal=request.goal,
        )
        self.lock = threading.Lock()
        self.sessions: dict[tuple[str, str], Session] = {}
        self.opened: list[Session] = []
        self.golden = staging.root / bundle.GOLDEN
        self.prepared = self.stopping = False

    # The steps in order.

    def execute(self) -> None:
        try:
            preparing, prepared = self._prepare()
        except UsageError:
            raise
        except ExporterError as error:  # the model itself does not run: every row says so
            for variant in self.request.variants:
                self.listener.done(self._keep(_failed(self._begin(variant, "prepare"), "prepare", error)))
            return
        self.prepared = True
        slots = min(len(self.request.variants) or 1, max(2, environment.usable_cpus() // 4))
        with self._pool(slots) as pool:
            golden = pool.submit(self._finish_golden, preparing)
            ordered = sorted(self.request.variants, key=_cost, reverse=True)
            done = [pool.submit(self._export_and_maybe_check, variant, prepared, golden) for variant in ordered]
            for future in [golden, *done]:
                future.result()
        if self.request.bench:
            self._check_in_turn(prepared)
            self._time(tuple(prepared.points)[1:])
        self.close_sessions()

    def _prepare(self) -> tuple[Child, Prepared]:
        needs_program = any(
            targets.get(variant.target).needs_program and not targets.is_live(variant)
            for variant in self.request.variants
        )
        child = self._begin_to_prepare(needs_program)
        try:
            return child, self._prepared(child)
        except JobError as error:  # it was torch.export that crashed: what needs none of it can still come
            child = self._begin_to_prepare(False)
            prepared = self._prepared(child)
            for file in self.job.captures(prepared.contract):
                file.unlink(missing_ok=True)
                file.with_suffix(".txt").write_text(f"torch.export: {error}: see logs/prepare.log")
            return child, prepared

    def _begin_to_prepare(self, capture_program: bool) -> Child:
        """A job that has loaded the model and found its contract."""
        self.listener.stage(EAGER, "load model")
        arguments = {
            "job": self.job,
            "capture_program": capture_program,
            "tolerance": self._tolerance(),
            "golden_path": self.golden,
            "precisions": self.request.precisions,
        }
        child = self.zygote.spawn("prepare", "exporter.steps:prepare", arguments, self.staging.logs / "prepare.log")
        child.expect("loaded", self.request.timeout)
        return child

    def _prepared(self, child: Child) -> Prepared:
        prepared: Prepared = child.expect("prepared", self.request.timeout)
        model = replace(
            self.manifest.model, weights=prepared.weights, parameters=prepared.parameters, sizes=prepared.base
        )
        warnings = self.request.warnings + prepared.warnings
        self._update(model=model, contract=prepared.contract, points=prepared.points, warnings=warnings)
        self.listener.stage(EAGER, "golden")
        return prepared

    def _tolerance(self) -> tuple[float | None, float | None]:
        return self.request.rtol, self.request.atol

    def _finish_golden(self, child: Child) -> None:
        findings: Findings = child.wait(self.request.timeout)
        golden = GoldenRecord(
            bundle.record(self.golden),
            findings.cases,
            findings.reference,
            findings.tolerance,
            findings.eager_rmse,
            findings.repeatable,
            findings.tolerances,
        )
        self._update(golden=golden, warnings=self.manifest.warnings + findings.notes)
        self.listener.stage(EAGER, "waiting")

    def _export_and_maybe_check(self, variant: targets.Variant, prepared: Prepared, golden: Future[None]) -> None:
        record = self._export(variant, prepared)
        if record.status == "passed" and not self.request.bench:
            golden.result()
            record = self._check(record, prepared, timed=False)
        if record.status == "failed" or not self.request.bench:
            self.listener.done(record)
        else:
            self.listener.stage(record.name, "waiting")

    def _begin(self, variant: targets.Variant, log: str = "") -> VariantRecord:
        name = variant.name
        log = f"{bundle.LOGS}/{_file(log or name)}.log"
        return VariantRecord(name, variant.target, "passed", "export", reproduce=self.request.reproduce(name), log=log)

    def _export(self, variant: targets.Variant, prepared: Prepared) -> VariantRecord:
        record, target = self._begin(variant), variant.target
        name = record.name
        promised = replace(prepared.contract, precision=variant.precision)
        if targets.is_live(variant):
            return self._keep(replace(record, lifecycle=Lifecycle(), contract=promised))
        self.listener.stage(name, "export")
        path = self.staging.root / variant.artifact
        niceness = 0 if variant == max(self.request.variants, key=_cost) else BACKGROUND
        job = replace(self.job, options=self._options(variant, niceness))
        arguments = {"job": job, "prepared": prepared, "target": target, "path": path}
        try:
            exported, seconds = self.zygote.run(
                f"export to {name}",
                "exporter.steps:export_variant",
                arguments,
                self.staging.root / record.log,
                self.request.timeout,
            )
        except ExporterError as error:
            for left in self.staging.root.glob(f"{path.name}*"):
                left.unlink()
            if self.stopping:
                raise
            return self._keep(_failed(record, "export", error))
        return self._keep(
            replace(
                record,
                artifact=bundle.record(path),
                companions=tuple(bundle.record(path.with_name(name)) for name in exported.companions),
                contract=replace(promised, target=target, ops=exported.ops, build=exported.build),
                notes=exported.notes,
                warnings=exported.warnings + (_about_export(prepared) if targets.get(target).needs_program else ()),
                lifecycle=Lifecycle(export_s=seconds),
            )
        )

    def _options(self, variant: targets.Variant, niceness: int = 0) -> targets.Options:
        return replace(self.options, variant=variant.setting, precision=variant.precision, niceness=niceness)

    def _check_in_turn(self, prepared: Prepared) -> None:
        eager = VariantRecord(EAGER, EAGER, "passed", contract=prepared.contract, log=f"{bundle.LOGS}/eager.log")
        for record in (eager, *(r for r in self.manifest.variants if r.status == "passed")):
            self._check(record, prepared, timed=True)

    def _check(self, record: VariantRecord, prepared: Prepared, timed: bool) -> VariantRecord:
        """Open the variant's sessions and judge their outputs; `timed` keeps the sessions open."""
        self.listener.stage(record.name, "check")
        results: list[SessionRecord] = []
        for kind, open_session in self._openers(record, prepared):
            before = self._gpu_memory(timed)
            result, session = self._judge(record, kind, open_session)
            after = self._gpu_memory(timed)
            if before is not None and after is not None:
                result = replace(result, gpu_mb=max(after - before, 0.0))
            if session is not None:
                record = replace(record, notes=record.notes + session.notes)
            if result.status == "passed" and record.artifact is None and record.name != EAGER:
                record = self._keep_cache(record)
                result = self._start_from_cache(record, result, prepared) if timed else result
            if self.stopping:
                raise JobError("stopped")
            results.append(result)
            if session is not None and timed:
                self.sessions[record.name, kind] = session
            elif session is not None:
                session.close()
        return self._keep(checks.conclude(record, tuple(results)))

    def _gpu_memory(self, timed: bool) -> float | None:
        """What the GPU holds now, in MB; None where others come and go beside, or there is none."""
        return environment.gpu_memory_mb(self.request.device) if timed and self.request.device != "cpu" else None

    def _opened(self, open_session: Callable[[], Session]) -> Session:
        """Open a session that `stop` will find, whichever thread it is in."""
        with self.lock:
            if self.stopping:
                raise JobError("stopped")
            session = open_session()
            self.opened.append(session)
        return session

    def _openers(self, record: VariantRecord, prepared: Prepared) -> Iterator[tuple[str, Callable[[], Session]]]:
        log = self.staging.root / record.log
        if record.artifact is None:
            yield "python", functools.partial(self._open_live, record, prepared, self._cold(record))
            return
        options = self.options if self.request.bench else replace(self.options, niceness=BACKGROUND)
        yield from checks.openers(self.alone, self.staging.root, record, options, log, self.request.timeout)

    def _open_live(self, record: VariantRecord, prepared: Prepared, scratch: Path) -> Session:
        """A session that has all that is temporary in `scratch`; compilers' caches too, for what is compiled there."""
        variant = next((v for v in self.request.variants if v.name == record.name), None)
        options = self.options
        if variant is not None:
            (scratch / CACHE).mkdir(parents=True, exist_ok=True)
            options = replace(self._options(variant), scratch=str(scratch), cache=str(scratch / CACHE))
        job = replace(self.job, options=options)
        arguments = {"job": job, "prepared": prepared, "target": record.target, "golden_path": str(self.golden)}
        log = self.staging.root / record.log
        return checks.open_live(self.alone, record.name, arguments, log, self.request.timeout)

    def _cold(self, record: VariantRecord) -> Path:
        """Where a variant that is compiled just in time has its temporary files."""
        return self.work / _file(record.name)

    def _keep_cache(self, record: VariantRecord) -> VariantRecord:
        """The variant with what its compilers cached as a file beside, where they did."""
        path = self.staging.root / f"{_file(record.name)}{bundle.CACHE}"
        packed = bundle.pack(self._cold(record) / CACHE, path)
        return replace(record, companions=(bundle.record(path),)) if packed else record

    def _start_from_cache(self, record: VariantRecord, cold: SessionRecord, prepared: Prepared) -> SessionRecord:
        """The session's record with the first call of another process, which has the cache and nothing else."""
        if not record.companions:
            return cold
        self.listener.stage(record.name, "start from cache")
        scratch = self.work / f"{_file(record.name)}-cached"
        bundle.unpack(self.staging.root / record.companions[0].path, scratch / CACHE)
        open_session = functools.partial(self._open_live, record, prepared, scratch)
        cached, session = self._judge(record, cold.session, open_session)
        if session is not None:
            session.close()
        bundle.remove(scratch)
        if cached.status == "passed":
            return replace(cold, cached_call_ms=cached.first_call_ms)
        return replace(
            cold, status="failed", stage=cached.stage, reason=f"from its cache: {cached.reason}", remedy=cached.remedy
        )

    def _judge(
        self, record: VariantRecord, kind: str, open_session: Callable[[], Session]
    ) -> tuple[SessionRecord, Session | None]:
        return checks.check(
            kind,
            functools.partial(self._opened, open_session),
            diagnosis.unsteady(self.manifest.warnings),
            record.contract is not None and record.contract.precision == "int8",
        )

    def _time(self, points: tuple[str, ...]) -> None:
        baseline = EAGER, "python"
        if baseline not in self.sessions:
            raise JobError("eager cannot be timed: its session failed", "see logs/eager.log")
        found = latency.measure(self.sessions, points, self.request.time_budget, baseline, self.listener.stage)
        for record in self.manifest.variants:
            if record.sessions:  # else its export failed
                self.listener.done(self._keep(found.timed(record)))
        bundle.write_atomic(self.staging.root / bundle.SAMPLES, found.samples())
        samples = bundle.record(self.staging.root / bundle.SAMPLES)
        self._update(samples=samples, warnings=self.manifest.warnings + found.warnings)

    # Bookkeeping.

    @contextmanager
    def _pool(self, slots: int) -> Iterator[ThreadPoolExecutor]:
        """Worker threads that only wait for children; when one raises, the children of the others end too."""
        pool = ThreadPoolExecutor(slots + 1)
        try:
            yield pool
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _keep(self, record: VariantRecord) -> VariantRecord:
        """Put a record into the manifest, in the order of the request."""
        if record.status == "failed" and not record.remedy and record.parity is None:
            record = replace(record, remedy=f"see {record.log} in the bundle")
        with self.lock:
            records = {r.name: r for r in self.manifest.variants} | {record.name: record}
            order = [EAGER, *(variant.name for variant in self.request.variants)]
            self._write(replace(self.manifest, variants=tuple(records[n] for n in order if n in records)))
        return record

    def _update(self, **changes: object) -> None:
        with self.lock:
            self._write(replace(self.manifest, **changes))  # type: ignore[arg-type]

    def _write(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.staging.write(manifest)

    def stop(self) -> None:
        """End every child; what they were about is not recorded as a failure."""
        with self.lock:
            self.stopping = True
        self.zygote.close()
        self.alone.close()
        self.close_sessions()

    def close_sessions(self) -> None:
        for session in self.opened:
            session.close()
        self.opened.clear()
        self.sessions.clear()

    def finish(self, status: str) -> bool:
        """Remove the work files and write the last manifest; whether anything was finished."""
        bundle.remove(self.work)
        self._update(status=status, variants=tuple(map(_unchecked, self.manifest.variants)))
        return bool(self.manifest.variants)


def _about_export(prepared: Prepared) -> tuple[str, ...]:
    return tuple(warning for warning in prepared.warnings if warning.startswith("torch.export "))


def _cost(variant: targets.Variant) -> int:
    """How long its export takes, against others'; nothing for what is not exported."""
    return 0 if targets.is_live(variant) else targets.get(variant.target).cost


def _unchecked(record: VariantRecord) -> VariantRecord:
    """Without its parity no variant has passed."""
    if record.status == "failed" or record.stage == "done":
        return record
    reason = "the run ended before its outputs were checked"
    return replace(record, status="failed", reason=reason, remedy="`exporter check` checks it, or export again")


def _failed(record: VariantRecord, stage: str, error: ExporterError) -> VariantRecord:
    reason, remedy = causes.describe(str(error), error.remedy, record.target)
    return replace(record, status="failed", stage=stage, reason=reason, remedy=remedy)


def _file(name: str) -> str:
    return name.replace(":", "-")
