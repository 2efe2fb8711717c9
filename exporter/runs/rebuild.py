"""Rebuild a bundle from its own record, without timing, and compare the two file by file.

This runs the model's code, which must be unchanged since the export: `provenance.json` has the hashes of the recipe,
the checkpoint and the inputs.
"""

from __future__ import annotations

import filecmp
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exporter import targets
from exporter._version import __version__
from exporter.bundle import checksums, integrity, layout, provenance
from exporter.bundle.differences import Difference, compare, conclude, records
from exporter.bundle.signing import Trust
from exporter.core import environment, filesystem
from exporter.core.errors import ArtifactError, BundleError, JobError, UsageError
from exporter.core.json_codec import to_json
from exporter.core.progress import Listener
from exporter.core.records import EAGER, Manifest
from exporter.runs import pipeline
from exporter.runs.request import Request

AGAIN = "export again, and run `exporter compare` on both bundles"
# Fields of a manifest that are specific to one run, and hashes of files that are themselves compared.
MEASURED = frozenset((
    "command", "created", "environment", "exporter", "reproduce", "lifecycle", "load_s", "first_call_ms",
    "cached_call_ms", "peak_rss_mb", "gpu_mb", "timings", "sweep", "machine", "samples", "notes", "warnings", "bytes",
    "sha256", "tuning",
))  # fmt: skip
DERIVED = {
    checksums.NAME: "derived: the hashes of the other files",
    layout.BOM: "derived: hashes of the other files, the time, the installed packages",
    layout.PROVENANCE: "derived: hashes of the other files, times, the current environment",
}
ONCE = {
    layout.SAMPLES: "a rebuild times nothing",
    layout.SIGNATURE: "a rebuild makes no signature",
    layout.SIGSTORE: "a rebuild makes no signature",
}


@dataclass(frozen=True)
class Rebuilt:
    """The result for each file of a bundle; `notes` list other changes, such as versions."""

    bundle: str
    files: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Return whether no file differs in numbers or in code."""
        return all(file.status in ("identical", "known places") for file in self.files)


def run(
    place: Path,
    trust: Trust,
    ask: Callable[[Manifest], Request],
    listener: Callable[[], AbstractContextManager[Listener]],
) -> Rebuilt:
    """Build the bundle again with the request that `ask` reads from its manifest, and compare.

    Raises AlteredError if a file differs from the published one; UsageError if the recipe, the checkpoint or the inputs
    changed; ArtifactError if the bundle cannot be built again.
    """
    evidence = integrity.examine(place, trust)
    evidence.require(evidence.problems | evidence.spoilt)
    manifest = layout.read_manifest(place)
    request = ask(manifest)
    require_materials(place, request)
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder, listener() as heard:
        out = Path(folder, place.resolve().name)
        try:
            again = replace(request, out=out, bench=False, reuse=False, tune=0.0, goal=manifest.goal)
            made, new = pipeline.run(again, heard)
        except JobError as error:
            raise ArtifactError(f"{place} cannot be built again: {error}", error.remedy) from error
        except BundleError as error:
            raise BundleError(str(error), "free some space there, or set TMPDIR to another folder") from error
        except KeyboardInterrupt as interrupt:
            interrupt.__notes__ = []  # they name finished variants, which are deleted too
            raise
        if made.status != "complete":
            failed = next(variant for variant in made.variants if variant.reason)
            raise ArtifactError(f"{place} cannot be built again: {failed.reason}", failed.remedy)
        _require_weights(manifest, made)
        files = tuple(_compared(place, new, manifest, made))
    return Rebuilt(str(place), files, (*evidence.notes, *_versions(manifest)))


def require_materials(place: Path, request: Request) -> None:
    """Raise UsageError if a file that the bundle was made from has changed."""
    path = place / layout.PROVENANCE
    before = provenance.recorded(checksums.read_bounded(path)) if path.is_file() else ()
    then, now = _digests(before), _digests(provenance.materials(request.source))
    for role, name in dict.fromkeys((*then, *now)):
        if (role, name) not in then:
            raise UsageError(f"{place} does not record the hash of the {role} {name}", AGAIN)
        if (role, name) not in now:
            raise UsageError(f"the {role} {name} can no longer be read", "restore the file")
        if now[role, name] != then[role, name]:
            remedy = f"restore the file{_revision(before)}, or {AGAIN}"
            raise UsageError(f"the {role} {name} has changed: its SHA-256 differs", remedy)


def _digests(materials: tuple[provenance.Material, ...]) -> dict[tuple[str, str], str]:
    """Return hashes by role and name. Skips the git revision, which has no SHA-256."""
    found = (material for material in materials if "sha256" in material["digest"])
    return {(m["annotations"].get("role", ""), m["name"]): m["digest"]["sha256"] for m in found}


def _revision(materials: tuple[provenance.Material, ...]) -> str:
    commits = [m["digest"]["gitCommit"] for m in materials if "gitCommit" in m["digest"]]
    return f" (git revision {commits[0]})" if commits else ""


def _require_weights(old: Manifest, new: Manifest) -> None:
    if (old.model.weights, old.model.origin) != (new.model.weights, new.model.origin):
        was, found = (" of ".join(filter(None, (m.weights, m.origin))) for m in (old.model, new.model))
        raise ArtifactError(f"the weights are {found} now and were {was}", "make the original weights available")


def _versions(manifest: Manifest) -> Iterator[str]:
    before = {"exporter": manifest.exporter} | manifest.environment
    used = targets.distributions(variant.target for variant in manifest.variants)
    now = {"exporter": __version__} | environment.describe(used)
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            yield f"{name} was {before.get(name, 'absent')}, is {now.get(name, 'absent')}"


def _compared(old: Path, new: Path, manifest: Manifest, made: Manifest) -> Iterator[Difference]:
    names = {path.relative_to(place).as_posix() for place in (old, new) for path in place.rglob("*") if path.is_file()}
    left = {name for name in layout.UNLISTED if name.endswith(filesystem.NEW)}  # left by an interrupted signing
    for name in sorted(names - left):
        if name in ONCE:
            yield Difference(name, "known places", ONCE[name])
        elif name.startswith(f"{layout.LOGS}/"):
            yield _log(name, old / name, new / name)
        elif name.startswith(f"{layout.REJECTED}/"):
            yield Difference(name, "known places", "an artifact that failed and is not shipped")
        elif not (old / name).is_file():
            yield Difference(name, "differs", "the rebuild added it")
        elif not (new / name).is_file():
            yield Difference(name, "differs", f"the rebuild did not make it: {_reason(name, manifest, made)}")
        elif name in DERIVED:
            yield Difference(name, "known places", DERIVED[name])
        elif name == layout.MANIFEST:
            yield conclude(name, records(_plain(manifest), _plain(made), MEASURED))
        else:
            yield compare(old / name, new / name)


def _log(name: str, old: Path, new: Path) -> Difference:
    if old.is_file() and new.is_file() and filecmp.cmp(old, new, shallow=False):
        return Difference(name, "identical")
    return Difference(name, "known places", "the output of a process")


def _reason(name: str, manifest: Manifest, made: Manifest) -> str:
    """Return why a file is missing: the reason that its variant failed."""
    owners = [variant.name for variant in manifest.variants if name in (file.path for file in variant.files)]
    return next((variant.reason for variant in made.variants if variant.name in owners), "") or "the cause is unknown"


def _plain(manifest: Manifest) -> Any:
    """Return the manifest as JSON, without what only a timed run has, such as the eager row, or a rebuild lacks."""
    exported = tuple(variant for variant in manifest.variants if variant.name != EAGER)
    asked = manifest.request and replace(manifest.request, bench=False, reuse=False, tune=0.0)
    return json.loads(to_json(replace(manifest, variants=exported, request=asked)))
