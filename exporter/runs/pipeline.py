"""The order of the steps: prepare, export, check, time. Only this module decides it, and it computes nothing itself.

Exports run concurrently; so do checks if nothing is timed. Otherwise sessions are opened one after another once the
exports are done, because their first call is measured too.

This file is long because it holds the whole sequence of an export, to be read from top to bottom.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from exporter import targets
from exporter.bundle import integrity, layout, provenance, publishing
from exporter.core import causes, contract, environment, filesystem, memory, precisions, tolerances
from exporter.core.errors import BundleError, ExporterError, JobError, RecipeError, UsageError
from exporter.core.progress import Listener
from exporter.core.records import EAGER, GoldenRecord, Lifecycle, Manifest, MetricRecord, VariantRecord
from exporter.core.size_range import Sizes
from exporter.core.tuning_records import kept
from exporter.evidence import diagnosis
from exporter.evidence.findings import Findings
from exporter.model.no_program import NoProgram
from exporter.runs import latency, session_checks, tuning
from exporter.runs.judging import Judging
from exporter.runs.manifest_writer import Draft
from exporter.runs.request import Request
from exporter.runs.scheduling import Turns, cost
from exporter.runs.sessions import Sessions
from exporter.runs.tuning import Tuning
from exporter.workers.children import BACKGROUND, EXPORTING, SIDE_BY_SIDE, WITHOUT_GPU, Child, Zygote, Zygotes
from exporter.workers.messages import GoldenSettings, Prepared, Values

WARM_UP_BYTES = 8e9  # of free memory; if less is free, nothing runs beside the loading of the model
CRASHES = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")  # of the job itself; others are sent from outside


def run(
    request: Request, listener: Listener | None = None, place: Path | None = None, zygotes: Zygotes | None = None
) -> tuple[Manifest, Path]:
    """Run the request; return the manifest and the bundle's path.

    The bundle is published at `place`, for a caller that moves it to `request.out` itself, or else at `request.out`.
    Jobs are forked from `zygotes`, which several runs may share, or else from the run's own.

    A variant that fails is a row of the manifest. If one fails, an existing bundle is kept and the new one published
    beside it when nothing passes in the new one, or when a variant that passed in the old one would be lost and
    `request.replace` is false. Raises UsageError before writing anything if the request cannot be met, and BundleError
    if the disk fails. Any other exception (KeyboardInterrupt included) stops the children and publishes the finished
    variants, beside an existing bundle if there is one; its message or a note names the place.
    """
    request.validate()
    environment.cache_limit()  # refuse a wrong one now, not in the middle of the run
    start = zygotes or Zygote
    with contextlib.ExitStack() as stack:
        on_cpu = request.device == "cpu"
        modules, visible = EXPORTING if request.needs_program and on_cpu else (), WITHOUT_GPU if on_cpu else {}
        later = targets.preloads(request.variants) if _preloads(request) else ()
        zygote = stack.enter_context(start({**SIDE_BY_SIDE, **visible}, modules, later))
        alone = stack.enter_context(start(visible)) if request.bench else zygote
        staging = stack.enter_context(publishing.stage(place or request.out))
        root = stack.enter_context(filesystem.plain(staging.root))
        current = _Run(request, zygote, alone, staging, root, listener or Listener())
        stack.callback(current.turns.close)
        stack.enter_context(current.sessions)
        try:
            current.execute()
            current.finish("complete" if current.prepared else "failed")
            made = current.draft.manifest
            replaces = made.passes and (request.replace or not publishing.lost(staging.out, made))
            return made, staging.publish() if replaces else staging.publish_beside(publishing.FAILED)
        except BaseException as error:
            known = filesystem.explain(error, place or request.out) if isinstance(error, OSError) else None
            if isinstance(known, BundleError):  # nothing can be written, and so nothing kept
                current.sessions.close()
                raise known from error
            current.stop()
            kept = staging.published
            if kept is None and current.finish("interrupted"):
                kept = staging.publish_beside(publishing.INTERRUPTED)
            if kept is not None and str(kept) not in str(error):
                (known or error).add_note(f"finished variants are in {kept}")
            if known is not None:
                raise known from error
            raise


def _preloads(request: Request) -> bool:
    """Return whether to import what exports need while the model is loaded.

    Where there is a driver for GPUs, importing inductor starts a thread of CUDA, even if no GPU is visible.
    """
    limited = request.memory_limit_gb or memory.free() < WARM_UP_BYTES
    return request.device == "cpu" and not environment.has_gpu_driver() and not limited


class _Run:
    """One run in progress."""

    def __init__(
        self,
        request: Request,
        zygote: Zygote,
        alone: Zygote,
        staging: publishing.Staging,
        root: Path,
        listener: Listener,
    ) -> None:
        """`root` is the path by which jobs access the staged bundle.

        Jobs are forked from `zygote`; timed sessions from `alone`, once no job is running.
        """
        self.request, self.zygote, self.alone, self.staging, self.listener = request, zygote, alone, staging, listener
        self.root = root
        self.work = root / ".work"
        self.work.mkdir()
        self.job = request.job(self.work)
        self.stamps = provenance.stamps(request.source)
        self.materials = provenance.materials(request.source)  # hashed now, because a job may take minutes
        self.draft = Draft(request, staging, root)
        # Untimed sessions run concurrently, so the growth of the GPU's memory says nothing about one of them.
        self.sessions = Sessions(request.device if request.bench else "cpu")
        self.judging = Judging(request, self.job, root, alone, self.draft, self.listener, self.sessions)
        self.golden = root / layout.GOLDEN
        self.turns = Turns(zygote, self.job, request.variants, root / layout.LOGS / "prepare.log")
        self.prepared = False
        self.warming: Child | None = None

    def execute(self) -> None:
        try:
            preparing, prepared = self._prepare()
        except UsageError:
            raise
        except ExporterError as error:  # the model itself does not run: every row fails
            self._end_warm_up()
            for variant in self.request.variants:
                failed = _failed(self._begin(variant, "prepare"), "prepare", error)
                self.listener.done(self.draft.keep(self.turns.plan.explain(failed)))
            return
        self.prepared = True
        self.turns.settle(prepared)
        slots = min(len(self.request.variants) or 1, max(2, environment.usable_cpus() // 4))
        with self._pool(slots) as pool:
            golden = pool.submit(self._finish_golden, preparing, prepared)
            ordered = self.turns.in_order(self.request.variants)
            begun: list[Future[None] | Future[VariantRecord]] = [golden]
            begun += [pool.submit(self._export_in_turn, variant, prepared) for variant in ordered]
            checks: list[Future[None]] = []
            for future in as_completed(begun):
                record = future.result()
                if record is not None and record.status == "pending" and not self.request.bench:
                    checks.append(pool.submit(self._check_untimed, record, prepared, golden))
            for check in checks:
                check.result()
        self._end_warm_up()
        self.turns.close()
        if self.request.bench:
            self._check_in_turn(prepared)
            self._time(tuple(prepared.points)[1:])
        self.sessions.close()

    def _warm_up(self) -> None:
        """Start a job that does what the first export on a machine would have to do, unless memory is short."""
        exports = [v for v in self.request.variants if not targets.is_live(v)]
        first = next((v for v in exports if targets.facts(v.target).warm_up), None)
        limited = self.request.device != "cpu" or self.job.options.memory_limit or memory.free() < WARM_UP_BYTES
        if first is None or limited:
            return
        arguments = {"target": first.target, "options": self.request.options(self.job, first)}
        with contextlib.suppress(ExporterError):  # loading the model reports it
            log = self.work / "warm-up.log"
            self.warming = self.zygote.spawn("warm-up", "exporter.workers.tasks:warm_up", arguments, log)

    def _end_warm_up(self) -> None:
        """End that job: what it has not done, nobody waits for any more."""
        if self.warming is not None:
            with contextlib.suppress(ExporterError):
                self.warming.wait(timeout=1)

    def _prepare(self) -> tuple[Child, Prepared]:
        self.listener.stage(EAGER, "load model")
        self._warm_up()
        self.turns.load(self.request.timeout)
        child = self._begin_to_prepare(self.request.needs_program)
        try:
            return child, self._prepared(child)
        except JobError as error:  # torch.export crashed: variants that do not need it can still be exported
            child = self._begin_to_prepare(False)
            prepared = self._prepared(child)
            for file in self.job.captures(prepared.contract):
                said = f"torch.export: {error}{session_checks.last_words(error, said='logs/prepare.log')}"
                NoProgram(said, blame=error.blame).write(file)
            return child, prepared

    def _begin_to_prepare(
        self, capture_program: bool, plan: tuple[tuple[Sizes, int], ...] = (), values: Values = "all"
    ) -> Child:
        """Start a job, and wait until it has loaded the model. `plan` is that of a job that the model crashed."""
        asked = tolerances.Asked(self.request.rtol, self.request.atol)
        arguments = {
            "job": self.job,
            "capture_program": capture_program,
            "making": GoldenSettings(self.golden, asked, self.request.precisions, plan, values),
        }
        if not plan:
            self.listener.stage(EAGER, "capture" if capture_program else "find contract")
        child = self.turns.prepare(arguments)
        child.expect("loaded", self.request.timeout)
        self._require_same_materials()
        return child

    def _require_same_materials(self) -> None:
        """Raise UsageError if what was loaded may not be what was hashed, which the provenance names."""
        now = provenance.stamps(self.request.source)
        if now == self.stamps:
            return
        for file in provenance.changed(self.materials, provenance.materials(self.request.source)):
            raise UsageError(f"{file} changed after the run began", "run it again")
        self.stamps = now

    def _prepared(self, child: Child) -> Prepared:
        prepared: Prepared = child.expect("prepared", self.request.timeout)
        model = replace(
            self.draft.manifest.model,
            weights=prepared.weights,
            parameters=prepared.parameters,
            sizes=prepared.base,
            origin=prepared.origin,
            licence=prepared.licence,
        )
        warnings = (*self.request.warnings, *prepared.warnings, *map(str, prepared.limits))
        self.draft.update(model=model, contract=prepared.contract, points=prepared.points, warnings=warnings)
        return prepared

    def _finish_golden(self, child: Child, prepared: Prepared) -> None:
        try:
            with self.turns.golden() as allowed:
                self.listener.stage(EAGER, "golden")
                findings = self._findings(child, prepared, allowed)
        except ExporterError as error:
            filesystem.probe_space(self.staging.root)
            raise self.turns.plan.explain_golden(error) from error
        golden = GoldenRecord(
            layout.record(self.golden),
            findings.cases,
            findings.reference,
            findings.tolerance,
            findings.eager_rmse,
            not findings.unsteady,
            findings.tolerances,
            findings.unsteady,
        )
        unsteady = (f"{diagnosis.UNSTEADY}: {findings.unsteady}",) if findings.unsteady else ()
        self.draft.update(
            golden=golden,
            warnings=self.draft.manifest.warnings + unsteady + findings.notes,
            metric=self._metric(findings),
        )
        self.listener.stage(EAGER, "waiting")

    def _findings(self, child: Child, prepared: Prepared, allowed: int) -> Findings:
        """Let the job make the golden. If the model crashes it, make another one without the values that may do so."""
        child.say(str(allowed))
        try:
            made: Findings = child.wait(self.request.timeout)
            return made
        except JobError as error:
            crash = _crash(error)
        left_out = "NaN and infinity"
        try:
            findings = self._made_again(prepared, allowed, "finite")
        except JobError as error:
            crash = _crash(error)
            left_out = "zeros, ones, negative, large and tiny numbers, padded masks, NaN and infinity"
            findings = self._made_again(prepared, allowed, "usual")
        note = f"the model crashes ({crash}) at unusual values, so these were not checked: {left_out}"
        return replace(findings, notes=(*findings.notes, note))

    def _made_again(self, prepared: Prepared, allowed: int, values: Values) -> Findings:
        child = self._begin_to_prepare(False, prepared.plan, values)
        child.expect("prepared", self.request.timeout)
        child.say(str(allowed))
        findings: Findings = child.wait(self.request.timeout)
        return findings

    def _metric(self, findings: Findings) -> MetricRecord | None:
        """Return eager's metric with the requested bounds. Raises RecipeError if the recipe has no metric for them."""
        least, most_loss = self.request.min_metric, self.request.max_metric_loss
        if findings.metric is not None:
            return MetricRecord(findings.metric, findings.samples, least, most_loss)
        if least is not None or most_loss is not None:
            raise RecipeError(
                "--min-metric and --max-metric-loss need a metric, and the recipe has none",
                "add metric(outputs, sample) and samples() to the recipe, or remove the options",
            )
        return None

    def _export_in_turn(self, variant: targets.Variant, prepared: Prepared) -> VariantRecord:
        with self.turns.export(variant) as zygote:
            record = self._explained(self._export(variant, prepared, zygote))
        if record.status == "failed":
            self.listener.done(record)
        else:
            self.listener.stage(record.name, "waiting")
        return record

    def _check_untimed(self, record: VariantRecord, prepared: Prepared, golden: Future[None]) -> None:
        golden.result()
        with self.turns.check(next(v for v in self.request.variants if v.name == record.name)):
            self.listener.done(self._explained(self.judging.judge(record, prepared)))

    def _explained(self, record: VariantRecord) -> VariantRecord:
        explained = self.turns.plan.explain(record)
        return self.draft.keep(explained) if explained != record else record

    def _begin(self, variant: targets.Variant, log: str = "") -> VariantRecord:
        name = variant.name
        log = f"{layout.LOGS}/{layout.stem(log or name)}.log"
        return VariantRecord(name, variant.target, "pending", "export", reproduce=self.request.reproduce(name), log=log)

    def _export(self, variant: targets.Variant, prepared: Prepared, zygote: Zygote) -> VariantRecord:
        record = self._begin(variant)
        if targets.is_live(variant):
            promised = replace(prepared.contract, precision=variant.precision)
            return self.draft.keep(replace(record, contract=promised))
        self.listener.stage(record.name, "export")
        path = self.root / variant.artifact
        try:
            options = self.request.options(self.job, variant)
            exported, seconds = self._run_export(variant, prepared, path, options, zygote, self.request.timeout)
        except ExporterError as error:
            filesystem.probe_space(self.staging.root)  # a full disk is the cause, and ends the run
            for left in self.staging.root.glob(f"{path.name}*"):
                left.unlink()
            if self.sessions.stopped:
                raise
            return self.draft.keep(_failed(record, "export", error))
        return self.draft.keep(_described(record, prepared, path, exported, seconds))

    def _run_export(
        self,
        variant: targets.Variant,
        prepared: Prepared,
        path: Path,
        options: targets.Options,
        zygote: Zygote,
        timeout: float,
    ) -> tuple[targets.Exported, float]:
        niceness = 0 if variant == max(self.request.variants, key=cost) else BACKGROUND
        arguments = {
            "job": replace(self.job, options=replace(options, niceness=niceness)),
            "prepared": prepared,
            "target": variant.target,
            "path": path,
        }
        log = self.root / self._begin(variant).log
        exported: tuple[targets.Exported, float] = zygote.run(
            f"export to {variant.name}", "exporter.workers.tasks:export_variant", arguments, log, timeout
        )
        return exported

    def _check_in_turn(self, prepared: Prepared) -> None:
        eager = VariantRecord(EAGER, EAGER, "pending", contract=prepared.contract, log=f"{layout.LOGS}/eager.log")
        for record in (eager, *(r for r in self.draft.manifest.variants if r.status == "pending")):
            self.turns.plan.begin(record.name)
            keep = record.name == EAGER or self.turns.plan.keeps(record)
            if not keep:
                record = replace(
                    record, untimed="there is not enough memory to keep it open with the others; export it alone"
                )
            tuner = self._tuner(record, prepared) if self.request.tune and record.name != EAGER else None
            if tuner and (why := tuner.obstacle(keep)):
                tuner, record = None, replace(record, notes=(*record.notes, f"not tuned: {why}"))
            judged = self._explained(self.judging.judge(record, prepared, keep and not tuner))
            if tuner and judged.status == "passed":
                self._tune(tuner, judged, prepared)

    def _tuner(self, record: VariantRecord, prepared: Prepared) -> Tuning:
        variant = next(v for v in self.request.variants if v.name == record.name)
        return Tuning(
            variant,
            self.request.options(self.job, variant),
            self.request.tune,
            self.root,
            self.work / f"tuning-{layout.stem(record.name)}",
            self.alone,
            self.draft.manifest.golden,
            tuple(prepared.points)[1:],
            latency.Budget(min(self.request.time_budget, tuning.TIMED_S)),
            self.request.timeout,
            self.listener.stage,
        )

    def _tune(self, tuner: Tuning, record: VariantRecord, prepared: Prepared) -> None:
        """Tune a variant that passed, and judge it again. The artifact is replaced only if the tuned one passes too."""

        def build(chosen: targets.Options, folder: Path, seconds: float) -> VariantRecord:
            path, timeout = folder / tuner.variant.artifact, min(seconds, self.request.timeout)
            exported, took = self._run_export(tuner.variant, prepared, path, chosen, self.zygote, timeout)
            return _described(self._begin(tuner.variant), prepared, path, exported, took)

        try:
            tuned = tuner.tune(record, build)
            found = replace(record, tuning=tuned.tried)
            if tuned.record is not None:
                found = self._replace(found, tuned.record, tuner.work / "aside", prepared)
        finally:
            layout.remove(tuner.work)
        if found.artifact == record.artifact:
            self._explained(self.judging.judge(found, prepared))

    def _replace(self, old: VariantRecord, new: VariantRecord, aside: Path, prepared: Prepared) -> VariantRecord:
        """Judge the tuned artifact in the place of the old one; return its record. If it fails, restore the old one."""
        choices = {old.name: (*self.request.chosen.get(old.name, ()), *kept(old.tuning))}
        new = replace(
            new, tuning=old.tuning, reproduce=replace(self.request, chosen=choices).reproduce(old.name), untimed=""
        )
        try:
            with tuning.replaced(self.root, old, new, aside) as there:
                judged = self._explained(self.judging.judge(there, prepared))
                if judged.status != "passed":
                    raise JobError(f"with all choices it fails at {judged.stage}: {judged.reason}")
                return judged
        except BaseException as error:
            undone = replace(old, tuning=tuning.undone(old.tuning, str(error)))
            self.draft.keep(undone)
            if not isinstance(error, JobError) or self.sessions.stopped:
                raise
            return undone

    def _time(self, points: tuple[str, ...]) -> None:
        baseline = EAGER, "python"
        if baseline not in self.sessions.kept:
            raise JobError("eager cannot be timed: its session failed", "see logs/eager.log")
        asked = self.request
        found = latency.measure(
            self.sessions.kept,
            points,
            latency.Budget(asked.time_budget, asked.least_runs, asked.wait_quiet),
            baseline,
            self.listener.stage,
        )
        for record in self.draft.manifest.variants:
            if record.sessions:  # else its export failed
                self.listener.done(self.draft.keep(self.turns.plan.explain(found.timed(record))))
        filesystem.write_atomic(self.staging.root / layout.SAMPLES, found.samples())
        samples = layout.record(self.staging.root / layout.SAMPLES)
        self.draft.update(
            samples=samples,
            machine=found.machine,
            untimed=found.untimed,
            warnings=self.draft.manifest.warnings + found.warnings,
        )

    @contextmanager
    def _pool(self, slots: int) -> Iterator[ThreadPoolExecutor]:
        """Yield a pool of threads that only wait for children; if one raises, end the children of the others too."""
        pool = ThreadPoolExecutor(slots + 1)
        try:
            yield pool
        except BaseException:
            self.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """End every child. Their unfinished work is not recorded as a failure."""
        self.sessions.stop()
        self.turns.close()
        self.zygote.close()
        self.alone.close()
        self.sessions.close()

    def finish(self, status: str) -> bool:
        """Remove the work files, write the final manifest and seal the bundle; return whether anything was finished."""
        layout.remove(self.work)
        finished = self.draft.finish(status)
        integrity.seal(self.staging.root, self.draft.manifest, self.materials)
        return finished


def _described(
    record: VariantRecord, prepared: Prepared, path: Path, exported: targets.Exported, seconds: float
) -> VariantRecord:
    """Return the record of a variant that was exported to `path`."""
    target = targets.get(record.target)
    (variant,) = targets.parse(record.name)
    narrowings = () if exported.whole else targets.narrowings(target, prepared.narrowings)
    said = tuple(one.told(prepared.contract.symbols[one.symbol]) for one in narrowings)
    promised = contract.narrow(replace(prepared.contract, precision=variant.precision), narrowings)
    return replace(
        record,
        artifact=layout.record(path),
        companions=tuple(layout.record(path.with_name(name)) for name in exported.companions),
        contract=replace(
            promised, target=record.target, ops=exported.ops, build=exported.build, entries=exported.entries
        ),
        notes=tuple(dict.fromkeys((*said, *exported.notes))),
        warnings=exported.warnings,
        limits=(*exported.limits, *(prepared.limits if target.needs_program else ())),
        lifecycle=Lifecycle(export_s=seconds),
    )


def _crash(error: JobError) -> str:
    """Return the signal with which a model crashed its job. Raises the error if the job failed for another reason."""
    if error.signal not in CRASHES:
        raise error
    return error.signal


def _failed(record: VariantRecord, stage: str, error: ExporterError) -> VariantRecord:
    reason, remedy, cause = causes.describe(error, record.target, session_checks.crashed(error))
    in_int8 = record.quantized or precisions.base(record.name.partition("@")[2]) == "int8"
    remedy = remedy or (causes.INT8 if in_int8 else "")
    return replace(record, status="failed", stage=stage, reason=reason, remedy=remedy, cause=cause)
