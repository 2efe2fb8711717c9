"""The manifest of a run in progress. Each change is written at once, so that a killed run leaves a valid one."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exporter import targets
from exporter._version import __version__
from exporter.bundle.publishing import Staging
from exporter.core import environment
from exporter.core.records import EAGER, UNCHECKED, Manifest, ModelRecord, VariantRecord
from exporter.runs.request import Request


class Draft:
    """The manifest of a run so far. Safe to use from several threads.

    Messages name files of the bundle by their paths in it, because neither `root`, by which jobs access it, nor the
    staging directory exists after the run.
    """

    def __init__(self, request: Request, staging: Staging, root: Path) -> None:
        self.manifest = Manifest(
            model=ModelRecord(request.model, request.asked or request.source.place, request.weights, request.seed),
            device=request.device,
            threads=request.threads,
            command=request.command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            exporter=__version__,
            environment=environment.describe(targets.distributions(v.target for v in request.variants)),
            warnings=request.warnings,
            goal=request.goal,
            request=request.record,
        )
        self._order = (EAGER, *(variant.name for variant in request.variants))
        self._staging = staging
        self._folders = root, staging.root
        self._lock = threading.Lock()

    def keep(self, record: VariantRecord) -> VariantRecord:
        """Insert a record, in the order of the request. Return it; if it failed without a remedy, with one."""
        if record.status == "failed" and not record.remedy and record.parity is None:
            record = replace(record, remedy=f"see {record.log} in the bundle")
        sessions = tuple(replace(one, reason=self._in_bundle(one.reason)) for one in record.sessions)
        record = replace(record, reason=self._in_bundle(record.reason), sessions=sessions)
        with self._lock:
            records = {r.name: r for r in self.manifest.variants} | {record.name: record}
            self._write(replace(self.manifest, variants=tuple(records[n] for n in self._order if n in records)))
        return record

    def _in_bundle(self, text: str) -> str:
        for folder in self._folders:
            text = text.replace(f"{folder}/", "")
        return text

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest."""
        with self._lock:
            self._write(replace(self.manifest, **changes))

    def finish(self, status: str) -> bool:
        """Move the failed artifacts aside and write the final manifest; return whether anything was finished."""
        variants = (self._staging.reject(_unchecked(variant)) for variant in self.manifest.variants)
        self.update(status=status, variants=tuple(variants))
        return bool(self.manifest.variants)

    def _write(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._staging.write(manifest)


def _unchecked(record: VariantRecord) -> VariantRecord:
    """Return the record, failed if it is still pending: without parity no variant has passed."""
    if record.status != "pending":
        return record
    reason = "the run ended before its outputs were checked"
    return replace(
        record, status="failed", stage=UNCHECKED, reason=reason, remedy="run `exporter check`, or export again"
    )
