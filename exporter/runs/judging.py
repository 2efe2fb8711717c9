"""Judge the sessions of each variant of a run, and add notes, the metric and the compilers' cache to its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.bundle import layout
from exporter.core.errors import ExporterError
from exporter.core.progress import Listener
from exporter.core.records import SessionRecord, VariantRecord
from exporter.evidence import metrics
from exporter.runs import session_checks
from exporter.runs.just_in_time import Live
from exporter.runs.manifest_writer import Draft
from exporter.runs.request import Request
from exporter.runs.sessions import Sessions
from exporter.workers.children import BACKGROUND, Zygote
from exporter.workers.messages import Job, Prepared
from exporter.workers.session.client import Session


@dataclass
class Judging:
    """Judges variants, from any thread. If the run is timed, one at a time, with nothing else running."""

    request: Request
    job: Job
    folder: Path  # the bundle
    zygote: Zygote
    draft: Draft
    listener: Listener
    sessions: Sessions

    def judge(self, record: VariantRecord, prepared: Prepared, keep: bool = True) -> VariantRecord:
        """Return the variant's record with the results of its sessions, and put it into the draft.

        If the run is timed, the sessions stay open, unless `keep` is false because memory is short. Raises JobError if
        the run is stopped.
        """
        self.listener.stage(record.name, "check")
        live = self._live(record, prepared)
        found = record

        def visit(kind: str, result: SessionRecord, session: Session | None) -> SessionRecord:
            nonlocal found
            if session is not None:
                found = replace(found, notes=found.notes + session.notes)
                if kind == "python" and self.draft.manifest.metric is not None:
                    found = self._measure(found, session)
            if result.status == "passed" and record.artifact is None:
                found = replace(found, companions=live.pack())
                if found.companions and self.request.bench:
                    result = self._from_cache(found, live, result)
            return result

        kept = record.name if self.request.bench and keep else ""
        results = self.sessions.judge(record, self.draft.manifest.golden, self._openers(record, live), kept, visit)
        concluded = session_checks.conclude(found, results)
        if self.draft.manifest.metric is not None:
            concluded = metrics.hold(concluded, self.draft.manifest.metric)
        return self.draft.keep(concluded)

    def _from_cache(self, record: VariantRecord, live: Live, cold: SessionRecord) -> SessionRecord:
        """Return the record of a session that found no cache, with the first call of one that starts from its cache."""
        self.listener.stage(record.name, "start from cache")
        with live.cached() as open_session:
            (cached,) = self.sessions.judge(record, self.draft.manifest.golden, [("python", open_session)])
        return live.started(cold, cached)

    def _measure(self, record: VariantRecord, session: Session) -> VariantRecord:
        """Return the record with the recipe's metric of the session's outputs, or with a note if that fails."""
        file = self.job.work / f"outputs-{layout.stem(record.name)}.pt"
        names = tuple(spec.name for spec in record.contract.outputs) if record.contract else ()
        arguments = {"job": self.job, "outputs": file, "names": names}
        log = self.folder / record.log
        try:
            session.outputs(file)
            metric = self.zygote.run("metric", "exporter.workers.tasks:measure", arguments, log, self.request.timeout)
        except ExporterError as error:
            return replace(record, notes=(*record.notes, f"the metric could not be computed: {error}"))
        finally:
            file.unlink(missing_ok=True)
        return replace(record, metric=metric)

    def _live(self, record: VariantRecord, prepared: Prepared) -> Live:
        variant = next((v for v in self.request.variants if v.name == record.name), None)
        return Live(record, variant, self.folder, self.job, prepared, self.zygote, self.request.timeout)

    def _openers(self, record: VariantRecord, live: Live) -> Iterator[tuple[str, session_checks.Opener]]:
        if record.artifact is None:
            yield "python", live.open
            return
        options = self.job.options if self.request.bench else replace(self.job.options, niceness=BACKGROUND)
        log = self.folder / record.log
        yield from session_checks.openers(self.zygote, self.folder, record, options, log, self.request.timeout)
