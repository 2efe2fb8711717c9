"""Sessions of an artifact, opened and judged: the same for a run and for `exporter check`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter import causes, diagnosis, environment, operators, parity, targets
from exporter.bundle import GOLDEN
from exporter.errors import ExporterError, JobError
from exporter.isolate import Zygote
from exporter.records import VERDICTS, Contract, Lifecycle, SessionRecord, VariantRecord
from exporter.session.client import NativeSession, PythonSession, Session

NOT_TIMED = "not timed:"  # begins the note of a variant whose sessions were not kept
_CRASH = re.compile(r"was ended by SIG(?!KILL|ILL|TERM|INT)")  # of its own doing
Opener = Callable[[], Session]
Judged = tuple[SessionRecord, Session | None]  # the session is None when it failed to give any outputs


def openers(
    zygote: Zygote, folder: Path, record: VariantRecord, options: targets.Options, log: Path, timeout: float
) -> Iterator[tuple[str, Opener]]:
    """(kind, function that starts a session) for each language that can run the artifact here."""
    if record.artifact is None or record.contract is None:
        return
    path, golden = folder / record.artifact.path, folder / GOLDEN
    options = replace(options, precision=record.contract.precision)
    arguments = {
        "target": record.target,
        "path": str(path),
        "golden_path": str(golden),
        "promised": record.contract,
        "options": options,
    }
    yield (
        "python",
        lambda: PythonSession(
            zygote.spawn(f"{record.name} (python)", "exporter.session.server:serve_artifact", arguments, log), timeout
        ),
    )
    runner = environment.find_runner()
    if runner is not None and targets.get(record.target).native:
        command = [str(runner), "session", str(path), "--golden", str(golden), "--device", options.device]
        command += ["--threads", str(options.threads), *_ops_libs(record.contract, options)]
        variables = {**zygote.environment, **({"TMPDIR": options.scratch} if options.scratch else {})}
        yield (
            "native",
            lambda: NativeSession(f"{record.name} (native)", command, log, timeout, variables, options.niceness),
        )


def _ops_libs(contract: Contract, options: targets.Options) -> Iterator[str]:
    """`--ops-lib FILE` for the user's libraries, and for those that are known for the artifact's operators."""
    for file in (*options.ops_libs, *filter(None, map(operators.library, contract.ops))):
        yield from ("--ops-lib", str(file))


def check(
    kind: str,
    open_session: Opener,
    unsteady: str = "",
    quantized: bool = False,
    promised: Contract | None = None,
) -> Judged:
    """Start a session, time its first call, judge its outputs at all that is `promised`, and the refusal of the rest.

    Where the artifact is `quantized`, some values are harder than others, and that tells nothing of a branch.
    `unsteady` is why eager itself is not repeatable: then that is why an artifact differs.
    """
    record = SessionRecord(kind, "failed", "load")
    session: Session | None = None
    try:
        session = open_session()
        session.start()
        record = replace(record, load_s=session.ready["load_s"], provider=session.ready["provider"])
        record, cases = _first_call_and_check(record, session)
    except ExporterError as error:
        if session is not None:
            session.close()
        reason, remedy = causes.describe(crashed(error), error.remedy)
        return replace(record, reason=reason, remedy=remedy), None
    except BaseException:
        if session is not None:
            session.close()
        raise
    given, cases = len(cases), diagnosis.judged(cases, promised)
    lost = session.unpropagated
    found = replace(parity.summarize(cases), refused=given - len(cases), unpropagated=lost)
    if found.verdict == "FAIL":
        found = replace(found, reason=_why(found.reason, cases, unsteady, quantized))
    record = replace(record, parity=found)
    if found.verdict == "FAIL":
        return replace(record, reason=found.reason), session
    return replace(record, status="passed", stage="done"), session


def crashed(error: ExporterError) -> str:
    """What an error says; of a process that a signal of its own ended, its last words too."""
    if isinstance(error, JobError) and _CRASH.search(str(error)) and error.log.strip():
        return f"{error}{last_words(error)}"
    return str(error)


def last_words(error: JobError, said: str = "its log") -> str:
    """What a process printed last before it ended without a result: what a C++ exception says, or else a line."""
    lines = [line.strip() for line in error.log.splitlines() if line.strip()]
    exceptions = [line.removeprefix("what():").strip() for line in lines if line.startswith("what():")]
    last = next(reversed([*lines[-1:], *exceptions[-1:]]), "")
    return f", after it said: {causes.shorten(last)}" if last else f", without a word ({said})"


def _why(reason: str, cases: diagnosis.Cases, unsteady: str, quantized: bool) -> str:
    """The reason of a failure, with what the pattern of cases says of it."""
    if unsteady:
        return f"{diagnosis.UNSTEADY}: {unsteady}; {reason}"
    if pattern := "; ".join(diagnosis.fixed_sizes(cases)):
        return pattern
    pattern = diagnosis.carried_state(cases) or ("" if quantized else diagnosis.value_dependence(cases))
    return f"{pattern}; {reason}" if pattern else reason


def _first_call_and_check(record: SessionRecord, session: Session) -> tuple[SessionRecord, list[dict[str, Any]]]:
    """A first call that fails is not the end: the check tells at which sizes it fails, unless the session is gone."""
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
    """What `judge` gives, with by how much the memory in use on the GPU grew meanwhile; as it is on the CPU.

    True only where nothing else comes to the GPU, or leaves it.
    """
    before = environment.gpu_memory_mb(device) if device != "cpu" else None
    record, session = judge()
    after = environment.gpu_memory_mb(device) if before is not None else None
    if before is None or after is None:
        return record, session
    return replace(record, gpu_mb=max(after - before, 0.0)), session


def conclude(record: VariantRecord, sessions: tuple[SessionRecord, ...]) -> VariantRecord:
    """The variant's own status, parity and lifecycle, from its sessions: the worst session wins."""
    if not sessions:
        raise ValueError(f"{record.name} has no session to conclude from")
    judged = [s.parity for s in sessions if s.parity is not None]
    failed = next((s for s in sessions if s.status == "failed"), None)
    python = next((s for s in sessions if s.session == "python"), None)
    lifecycle = record.lifecycle
    if python is not None:
        lifecycle = Lifecycle(
            record.lifecycle.export_s,
            python.load_s,
            python.first_call_ms,
            python.peak_rss_mb,
            python.cached_call_ms,
        )
    lost = _unpropagated(sessions)
    worst = max(judged, key=lambda p: (VERDICTS.index(p.verdict), p.max_abs or 0.0), default=None)
    reason = f"{diagnosis.with_place(failed.reason, record.warnings)} ({failed.session})" if failed else ""
    int8 = causes.INT8 if record.quantized else ""
    return replace(
        record,
        status="failed" if failed else "passed",
        stage=failed.stage if failed else "done",
        reason=reason,
        remedy=(failed.remedy or causes.remedy(reason, record.target) or int8) if failed else "",
        fixed=tuple(part for p in judged for part in p.reason.split("; ") if " is fixed at " in part)[:4],
        parity=replace(worst, parts=(), unpropagated=lost) if worst else None,
        notes=tuple(dict.fromkeys((*record.notes, *(lost or ())))),
        lifecycle=lifecycle,
        sessions=sessions,
    )


def _unpropagated(sessions: tuple[SessionRecord, ...]) -> tuple[str, ...] | None:
    """What no session has to say twice; None where none was asked."""
    found = [s.parity.unpropagated for s in sessions if s.parity is not None and s.parity.unpropagated is not None]
    return tuple(dict.fromkeys(said for one in found for said in one)) if found else None
