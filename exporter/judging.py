"""The sessions of a run: opened, judged, kept open where they will be timed, and ended together."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from exporter import bundle, checks, latency, metrics
from exporter.draft import Draft
from exporter.errors import ExporterError, JobError
from exporter.isolate import BACKGROUND, Zygote
from exporter.job import Job, Prepared
from exporter.just_in_time import Live
from exporter.listener import Listener
from exporter.records import SessionRecord, VariantRecord
from exporter.request import Request
from exporter.session.client import Session


@dataclass
class Judging:
    """Judges variants, from whichever thread; one at a time, with nothing beside, where the run is timed."""

    request: Request
    job: Job
    folder: Path  # the bundle
    zygote: Zygote
    draft: Draft
    listener: Listener

    def __post_init__(self) -> None:
        self.sessions: dict[latency.Key, Session] = {}  # those to be timed
        self.stopping = False
        self._opened: list[Session] = []
        self._lock = threading.Lock()

    def judge(self, record: VariantRecord, prepared: Prepared, keep: bool = True) -> VariantRecord:
        """The variant with what its sessions gave, put into the draft. JobError when the run is stopped.

        Where the run is timed its sessions stay open, unless `keep` says that there is no memory for that.
        """
        self.listener.stage(record.name, "check")
        live = self._live(record, prepared)
        results: list[SessionRecord] = []
        for kind, open_session in self._openers(record, live):
            judge = functools.partial(self._judge, record, kind)
            watched = self.request.device if self.request.bench else "cpu"  # untimed, others come and go
            result, session = checks.watch_gpu_memory(watched, functools.partial(judge, open_session))
            if session is not None:
                record = replace(record, notes=record.notes + session.notes)
                if kind == "python" and self.draft.manifest.metric is not None:
                    record = self._measure(record, session)
            if result.status == "passed" and record.artifact is None:
                record = replace(record, companions=live.pack())
                if record.companions and self.request.bench:
                    self.listener.stage(record.name, "start from cache")
                    result = live.start_from_cache(result, judge)
            if self.stopping:
                raise JobError("stopped")
            results.append(result)
            if session is not None and self.request.bench and keep:
                self.sessions[record.name, kind] = session
            elif session is not None:
                session.close()
        concluded = checks.conclude(record, tuple(results))
        if self.draft.manifest.metric is not None:
            concluded = metrics.hold(concluded, self.draft.manifest.metric)
        return self.draft.keep(concluded)

    def _measure(self, record: VariantRecord, session: Session) -> VariantRecord:
        """With the recipe's metric of what the session gives for its samples; a note where that cannot be had."""
        file = self.job.work / f"outputs-{bundle.stem(record.name)}.pt"
        names = tuple(spec.name for spec in record.contract.outputs) if record.contract else ()
        arguments = {"job": self.job, "outputs": file, "names": names}
        log = self.folder / record.log
        try:
            session.outputs(file)
            metric = self.zygote.run("metric", "exporter.steps:measure", arguments, log, self.request.timeout)
        except ExporterError as error:
            return replace(record, notes=(*record.notes, f"its metric is not known: {error}"))
        finally:
            file.unlink(missing_ok=True)
        return replace(record, metric=metric)

    def _live(self, record: VariantRecord, prepared: Prepared) -> Live:
        variant = next((v for v in self.request.variants if v.name == record.name), None)
        return Live(record, variant, self.folder, self.job, prepared, self.zygote, self.request.timeout)

    def _openers(self, record: VariantRecord, live: Live) -> Iterator[tuple[str, checks.Opener]]:
        if record.artifact is None:
            yield "python", live.open
            return
        options = self.job.options if self.request.bench else replace(self.job.options, niceness=BACKGROUND)
        log = self.folder / record.log
        yield from checks.openers(self.zygote, self.folder, record, options, log, self.request.timeout)

    def _judge(self, record: VariantRecord, kind: str, open_session: checks.Opener) -> checks.Judged:
        return checks.check(kind, functools.partial(self._open, open_session), record, self.draft.manifest.golden)

    def _open(self, open_session: checks.Opener) -> Session:
        """Open a session that `stop` will find, whichever thread it is in."""
        with self._lock:
            if self.stopping:
                raise JobError("stopped")
            session = open_session()
            self._opened.append(session)
        return session

    def stop(self) -> None:
        """Let no session be opened any more."""
        with self._lock:
            self.stopping = True

    def close(self) -> None:
        """End every session."""
        for session in self._opened:
            session.close()
        self._opened.clear()
        self.sessions.clear()
