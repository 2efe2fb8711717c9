"""A bundle checked again: every hash first, then every artifact against the golden. The bundle is not changed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from exporter import bundle, checks, diagnosis, targets
from exporter.errors import ArtifactError, ExporterError
from exporter.isolate import Zygote
from exporter.pipeline import Listener
from exporter.records import Manifest, VariantRecord


def run(
    place: Path,
    threads: int,
    timeout: float,
    listener: Listener,
    ops_libs: tuple[str, ...] = (),
    allow_cpu_fallback: bool = False,
) -> Manifest:
    """The manifest with the sessions as they are found now; timings are left out, for nothing is timed.

    ArtifactError when the golden was altered. A variant whose artifact was altered is not loaded; its row says so.
    """
    manifest = bundle.read_manifest(place)
    if manifest.golden is None:
        raise ArtifactError(f"{place} has no golden: its run ended before one was made", "export again")
    for file in (manifest.golden.file, manifest.samples):
        if file is not None:
            bundle.verify(place, file)
    unsteady = diagnosis.unsteady(manifest.warnings)
    checked: list[VariantRecord] = []
    with Zygote() as zygote, tempfile.TemporaryDirectory(prefix="exporter-") as logs:
        options = targets.Options(
            device=manifest.device,
            threads=threads,
            allow_cpu_fallback=allow_cpu_fallback,
            scratch=logs,
            ops_libs=ops_libs,
        )
        for record in manifest.variants:
            if record.artifact is None:
                continue
            listener.stage(record.name, "check")
            log = Path(logs) / f"{len(checked)}.log"
            checked.append(_check(zygote, place, record, options, log, timeout, unsteady))
            listener.done(checked[-1])
    if not checked:
        raise ArtifactError(f"{place} holds no artifact", "export again")
    return replace(manifest, variants=tuple(checked), warnings=())


def _check(
    zygote: Zygote,
    place: Path,
    record: VariantRecord,
    options: targets.Options,
    log: Path,
    timeout: float,
    unsteady: str,
) -> VariantRecord:
    record = replace(record, timings={}, notes=(), reason="", remedy="")
    try:
        for file in record.files:
            bundle.verify(place, file)
    except ExporterError as error:
        failed = replace(record, status="failed", stage="hash", sessions=(), parity=None)
        return replace(failed, reason=str(error), remedy=error.remedy)
    sessions = []
    for kind, open_session in checks.openers(zygote, place, record, options, log, timeout):
        quantized = record.contract is not None and record.contract.precision == "int8"
        result, session = checks.check(kind, open_session, unsteady, quantized)
        sessions.append(result)
        if session is not None:
            session.close()
    return checks.conclude(record, tuple(sessions))
