"""Open and judge the sessions of an artifact, for a run and for `exporter check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter import targets
from exporter.bundle import checksums, layout
from exporter.core import causes, environment
from exporter.core.contract_records import FP32
from exporter.core.errors import ExporterError, JobError
from exporter.core.parity_records import VERDICTS
from exporter.core.records import GoldenRecord, SessionRecord, VariantRecord
from exporter.evidence import diagnosis, parity
from exporter.evidence.findings import STEADY
from exporter.model import custom_ops
from exporter.workers.children import Zygote
from exporter.workers.session.client import NativeSession, PythonSession, Session

CONVERT_S = 300.0  # time limit for converting the golden of an earlier release
FROM_OUTSIDE = ("", "SIGKILL", "SIGILL", "SIGTERM", "SIGINT")  # the process prints no message about these
Opener = Callable[[], Session]
Judged = tuple[SessionRecord, Session | None]  # the session is None if it returned no outputs


def openers(
    zygote: Zygote, folder: Path, record: VariantRecord, options: targets.Options, log: Path, timeout: float
) -> Iterator[tuple[str, Opener]]:
    """Yield (kind, function that starts a session) for each language that can run the artifact here."""
    if record.artifact is None or record.contract is None:
        return
    path, golden = folder / record.artifact.path, layout.golden(folder)
    options = options.computing_in(record.contract.precision)
    arguments = {
        "target": record.target,
        "path": str(path),
        "golden_path": str(golden),
        "recorded": record.contract,
        "options": options,
    }
    yield (
        "python",
        lambda: PythonSession(
            zygote.spawn(f"{record.name} (python)", "exporter.workers.session.server:serve_artifact", arguments, log),
            timeout,
        ),
    )
    runner = environment.find_runner()
    if runner is not None and targets.is_native(record.target):
        command = [str(runner), "session", str(path), "--device", options.device]
        command += ["--threads", str(options.threads), *custom_ops.runner_words(record.contract.ops, options.ops_libs)]
        command += ["--huge-pages"] if options.huge_pages else []
        variables = {**zygote.environment, **({"TMPDIR": options.scratch} if options.scratch else {})}

        def open_native() -> Session:
            words = [*command, "--golden", str(converted(zygote, golden, log))]
            return NativeSession(f"{record.name} (native)", words, log, timeout, variables, options.niceness)

        yield "native", open_native


def converted(zygote: Zygote, golden: Path, log: Path) -> Path:
    """Return the golden in the format that C++ reads. That of an earlier release is converted, next to the log."""
    if golden.name != layout.PICKLED_GOLDEN:
        return golden
    place = log.parent / f"{checksums.of(golden)[:16]}.{layout.GOLDEN}"
    if not place.exists():
        arguments = {"golden_path": str(golden), "path": str(place)}
        zygote.run("golden", "exporter.workers.tasks:convert_golden", arguments, log, CONVERT_S)
    return place


def check(kind: str, open_session: Opener, record: VariantRecord, golden: GoldenRecord | None) -> Judged:
    """Start a session, time its first call, and judge its outputs.

    Its outputs are judged for every case that the contract promises; it must refuse the other cases.
    """
    found = SessionRecord(kind, "failed", "load")
    session: Session | None = None
    try:
        session = open_session()
        session.start()
        found = replace(found, load_s=session.ready["load_s"], provider=session.ready["provider"])
        found, answer = _first_call_and_check(found, session)
    except ExporterError as error:
        if session is not None:
            session.close()
        return _failed(found, error, record), None
    except BaseException:
        if session is not None:
            session.close()
        raise
    return _judged(found, answer, session.unpropagated, record, golden), session


def _failed(found: SessionRecord, error: ExporterError, record: VariantRecord) -> SessionRecord:
    reason, remedy, cause = causes.describe(error, record.target, text=crashed(error))
    if isinstance(error, JobError) and error.signal:
        why = diagnosis.crashed(reason, record.limits)
        blamed = _cause(why, record.target)
        reason, remedy = why.reason, remedy or (blamed.remedy if blamed else "")
        cause = cause or (blamed.name if blamed else "")
    return replace(found, reason=reason, remedy=remedy, cause=cause)


def _judged(
    found: SessionRecord,
    answer: list[dict[str, Any]],
    lost: tuple[str, ...] | None,
    record: VariantRecord,
    golden: GoldenRecord | None,
) -> SessionRecord:
    """Return the record with the parity of a `check` answer; `lost` lists what the answer does not propagate.

    That says nothing about an artifact that fails at the example even without NaN and infinity.
    """
    cases = diagnosis.judged(diagnosis.checked(answer, golden.cases if golden else ()), record.contract)
    answers = [case.answer for case in cases]
    if golden and any(case.error and case.case == golden.cases[0] for case in cases):
        lost = None
    summary = replace(parity.summarize(answers), refused=len(answer) - len(cases), unpropagated=lost)
    if golden and record.contract and record.contract.precision != FP32 and golden.unsteady not in STEADY:
        unjudged = f"artifacts in {record.contract.precision} are not judged for a model that is not repeatable"
        summary = replace(summary, verdict="FAIL", reason=summary.reason or unjudged)
    if summary.verdict != "FAIL":
        return replace(found, parity=summary, status="passed", stage="done")
    known = diagnosis.Known(record.warnings, record.limits, quantized=record.quantized)
    if golden:
        known = replace(known, unsteady=golden.unsteady, example=golden.cases[0].sizes if golden.cases else {})
    why = diagnosis.Diagnosis(summary.reason)
    if cases:
        why = diagnosis.explain(summary.reason, cases, cases[parity.worst(answers)], known)
    summary = replace(summary, reason=why.reason, fixed=why.fixed)
    if cause := _cause(why, record.target):
        found = replace(found, remedy=cause.remedy, cause=cause.name)
    return replace(found, parity=summary, reason=why.reason)


def _cause(why: diagnosis.Diagnosis, target: str) -> causes.Cause | None:
    """Return the diagnosed cause, or else the known cause of the error that the artifact raised."""
    return causes.named(why.cause, target, why.words) if why.cause else causes.find(why.reason, target)


def crashed(error: ExporterError) -> str:
    """Return the error's message, with the process's last output if it crashed."""
    if isinstance(error, JobError) and error.signal not in FROM_OUTSIDE and error.log.strip():
        return f"{error}{last_words(error)}"
    return str(error)


def last_words(error: JobError, said: str = "its log") -> str:
    """Return the last output of a process that ended without a result: its C++ exception, or else its last line."""
    lines = [line.strip() for line in error.log.splitlines() if line.strip()]
    exceptions = [line.removeprefix("what():").strip() for line in lines if line.startswith("what():")]
    last = next(reversed([*lines[-1:], *exceptions[-1:]]), "")
    return f", last output: {causes.shorten(last)}" if last else f" without any output ({said})"


def _first_call_and_check(record: SessionRecord, session: Session) -> tuple[SessionRecord, list[dict[str, Any]]]:
    """Time the first call, then check: even if the call fails, to find the failing sizes, unless the session ended."""
    try:
        record = replace(record, stage="first call", first_call_ms=session.time(1)[0])
        record = replace(record, peak_rss_mb=session.peak_rss_mb, provider=session.ready["provider"])
    except ExporterError as error:
        try:
            return replace(record, stage="check"), session.check()
        except ExporterError:
            raise error from None
    return replace(record, stage="check"), session.check()


def watch_gpu_memory(device: str, judge: Callable[[], Judged]) -> Judged:
    """Return the result of `judge`, with the growth of the GPU's memory in use meanwhile; unchanged on the CPU.

    The growth is correct only if no other process allocates or frees memory on the GPU.
    """
    before = environment.gpu_memory_mb(device) if device != "cpu" else None
    record, session = judge()
    after = environment.gpu_memory_mb(device) if before is not None else None
    if before is None or after is None:
        return record, session
    return replace(record, gpu_mb=max(after - before, 0.0)), session


def conclude(record: VariantRecord, sessions: tuple[SessionRecord, ...]) -> VariantRecord:
    """Return the variant's record with the status, parity and lifecycle of its sessions: the worst session counts."""
    if not sessions:
        raise ValueError(f"{record.name} has no session")
    judged = [s.parity for s in sessions if s.parity is not None]
    failed = next((s for s in sessions if s.status == "failed"), None)
    python = next((s for s in sessions if s.session == "python"), None)
    lifecycle = record.lifecycle
    if python is not None:
        lifecycle = replace(
            lifecycle,
            load_s=python.load_s,
            first_call_ms=python.first_call_ms,
            peak_rss_mb=python.peak_rss_mb,
            cached_call_ms=python.cached_call_ms,
        )
    lost = _unpropagated(sessions)
    repeated = tuple(p.reason for p in judged if p.verdict != "FAIL" and p.reason)  # errors of eager's own
    worst = max(judged, key=lambda p: (VERDICTS.index(p.verdict), p.max_abs or 0.0), default=None)
    int8 = causes.INT8 if record.quantized else ""
    return replace(
        record,
        status="failed" if failed else "passed",
        stage=failed.stage if failed else "done",
        reason=f"{failed.reason} ({failed.session})" if failed else "",
        remedy=(failed.remedy or int8) if failed else "",
        cause=failed.cause if failed else "",
        fixed=tuple(dict.fromkeys(str(one) for p in judged for one in p.fixed)),
        parity=replace(worst, parts=(), unpropagated=lost) if worst else None,
        notes=tuple(dict.fromkeys((*record.notes, *repeated, *(lost or ())))),
        lifecycle=lifecycle,
        sessions=sessions,
    )


def _unpropagated(sessions: tuple[SessionRecord, ...]) -> tuple[str, ...] | None:
    """Return what the sessions do not propagate, without duplicates; None if no session was checked for it."""
    found = [s.parity.unpropagated for s in sessions if s.parity is not None and s.parity.unpropagated is not None]
    return tuple(dict.fromkeys(said for one in found for said in one)) if found else None
