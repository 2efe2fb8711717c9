"""Find where a variant of a bundle goes wrong. This runs the model's code, which must be unchanged since the export."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from exporter import targets
from exporter.bundle import checksums, integrity, layout
from exporter.bundle.signing import Trust
from exporter.core import environment, runners
from exporter.core.errors import AlteredError, UsageError
from exporter.core.precisions import MIXED
from exporter.core.records import Manifest, VariantRecord
from exporter.runs import rebuild
from exporter.runs.request import again
from exporter.workers import bisect
from exporter.workers.bisect import Asked, Bisection


def run(
    place: Path, name: str, out: Path, begun: Callable[[str], None], timeout: float, fix: bool = False
) -> Bisection:
    """Examine the variant `name` of the bundle `place`, and write what shows the failure to `out`.

    With `fix`, also find options with which a variant passes that fails.

    Raises UsageError if the bundle lacks the variant, if the variant was not exported, if the bundle keeps state inside
    its artifacts, if the recipe changed, or if the variant's rejected artifact is missing; AlteredError if a file
    differs from the published one.
    """
    evidence = integrity.examine(place, Trust())
    evidence.require(evidence.problems | evidence.spoilt)
    manifest = layout.read_manifest(place)
    if fix and not can_fix(targets.parse(name)[0]):
        cause = f"--fix needs a compile or onnx variant, or one in {', '.join(MIXED)}, and {name} is not one"
        raise UsageError(cause, "leave it out")
    record = _record(manifest, name)
    artifact = _artifact(place, record)
    (variant,) = targets.parse(name)
    request = again(manifest)
    rebuild.require_materials(place, request)
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        job = request.job(Path(folder))
        options = request.options(job, variant)
        runner = environment.find_runner() if _fails_in_cpp(record) else None
        asked = Asked(
            record.target,
            record.name,
            artifact,
            layout.golden(place),
            out,
            fix,
            runner,
            manifest.metric,
        )
        found = bisect.run(replace(job, options=options), asked, Path(folder, "bisect.log"), begun, timeout)
    return _against(record, found)


def can_fix(variant: targets.Variant) -> bool:
    """Return whether a variant has options that may make it pass."""
    return variant.base in MIXED or variant.target in ("compile", "onnx")


def _fails_in_cpp(record: VariantRecord) -> bool:
    return any(one.session == "native" and one.status == "failed" for one in record.sessions)


def _against(record: VariantRecord, found: Bisection) -> Bisection:
    """Do not call a variant right that failed, even if its outputs are right now."""
    if record.status != "failed" or not found.passes:
        return found
    sessions = ", ".join(one.session for one in record.sessions if one.status == "failed")
    where = f" ({sessions})" if sessions else ""
    used = runners.find()
    both = " and in C++" if _fails_in_cpp(record) and used.used else ""
    sentence = f"its outputs are right in Python{both} now, but the variant {record.failure}{where}: "
    notes, remedy = found.notes, record.remedy
    if _fails_in_cpp(record) and not used.used:
        notes, remedy = (*notes, f"it was not run in C++: {used.reason}"), used.remedy(bool(environment.compiler()))
    sentence += record.reason
    return replace(found, verdict="not located", sentence=sentence, remedy=remedy, passes=False, notes=notes)


def _record(manifest: Manifest, name: str) -> VariantRecord:
    known = {variant.name: variant for variant in manifest.variants}
    if name not in known:
        raise UsageError(f"the bundle has no variant {name}", f"choose one of {', '.join(known)}")
    if manifest.contract is not None and manifest.contract.state and manifest.contract.state.kept == "inside":
        raise UsageError(
            "its artifacts carry state from call to call, and a part of the model cannot", "export with --state inputs"
        )
    found = known[name]
    if found.contract is not None and found.contract.entries:
        raise UsageError(
            f"{name} has models for some sizes alone, and bisect looks into one model", "export without --entries"
        )
    if not (found.artifact or found.rejected or any(map(targets.is_live, targets.parse(name)))):
        raise UsageError(
            f"{name} was not exported: {found.reason}", "`exporter explain` says what stops each target from exporting"
        )
    return found


def _artifact(place: Path, record: VariantRecord) -> Path | None:
    """Return the path of the variant's artifact. Only the manifest has the hashes of a rejected one: compare them."""
    wanted = {file.path: file.sha256 for file in record.rejected}
    found = {name: digest for name in wanted if (digest := checksums.held(place, name)) is not None}
    if missing := wanted.keys() - found.keys():
        cause = f"{place / min(missing)} is missing, and packed bundles leave out what failed the check"
        raise UsageError(cause, "give the bundle that the export wrote, or export again")
    if altered := checksums.differences(wanted, found, layout.MANIFEST):
        raise AlteredError(f"{place} failed verification: {'; '.join(altered.values())}", integrity.REMEDY)
    files = (record.artifact,) if record.artifact else record.rejected
    return place / files[0].path if files and files[0] else None
