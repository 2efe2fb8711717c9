"""The output directory: what is in it, and whether each file is the one that was recorded."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from exporter import targets
from exporter.bundle import checksums
from exporter.core.contract_records import PRECISIONS
from exporter.core.errors import ArtifactError
from exporter.core.filesystem import NEW
from exporter.core.json_codec import from_json
from exporter.core.records import ArtifactRecord, Manifest

MANIFEST = "manifest.json"
SAMPLES = "samples.json"
GOLDEN = "golden.safetensors"
PICKLED_GOLDEN = "golden.pt"  # of releases before golden schema 3
LOGS = "logs"
REJECTED = "rejected"  # artifacts that were judged and failed: no record lists them, and nobody ships them
REASONS = "REASONS.txt"  # in that folder
BOM = "bom.cdx.json"
PROVENANCE = "provenance.json"
SIGNATURE, SIGSTORE = "provenance.dsse.json", "provenance.sigstore.json"
UNLISTED = (checksums.NAME, SIGNATURE, SIGSTORE, SIGNATURE + NEW, SIGSTORE + NEW)  # what SHA256SUMS does not list
CACHE = ".cache.zip"  # how the name of a just-in-time variant's cache ends
OURS = {MANIFEST, SAMPLES, GOLDEN, PICKLED_GOLDEN, LOGS, REJECTED, BOM, PROVENANCE, *UNLISTED}
# What to do about a file that is not what it was.
ALTERED = "the bundle was cut short or altered: take it again from where it was published, or export again"


def golden(bundle: Path) -> Path:
    """The golden of a bundle, under the name of today or that of a release before."""
    pickled = bundle / PICKLED_GOLDEN
    return pickled if pickled.exists() and not (bundle / GOLDEN).exists() else bundle / GOLDEN


def record(path: Path) -> ArtifactRecord:
    """A file of a bundle, by its name in the bundle."""
    return ArtifactRecord(path.name, path.stat().st_size, checksums.of(path))


def artifacts() -> dict[str, str]:
    """The target of each file that the targets which are here may make, by the file's name; of its companions too."""
    found: dict[str, str] = {}
    for name in targets.usable():
        for precision in PRECISIONS:
            artifact = targets.Variant(name, precision=precision).artifact
            found |= {artifact + suffix: name for suffix in ("", *targets.facts(name).companions)}
    return found


def read_manifest(bundle: Path) -> Manifest:
    """The manifest of a bundle; ArtifactError when there is none, it is broken, or not what SHA256SUMS says."""
    path = bundle / MANIFEST
    try:
        data = checksums.bounded(path)
        listed = checksums.read(bundle)
        if listed is not None and listed.get(MANIFEST) != hashlib.sha256(data).hexdigest():
            raise ArtifactError(f"it does not match {checksums.NAME}", ALTERED)
        return from_json(Manifest, data)
    except OSError as error:
        raise ArtifactError(
            f"{bundle} holds no bundle: {error.strerror}: {path}", "give the directory of an `exporter export`"
        ) from error
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}", error.remedy or ALTERED) from error


def verify(bundle: Path, recorded: ArtifactRecord, found: str | None = None) -> None:
    """ArtifactError when a file of the bundle is missing or is not the one that was recorded.

    `found` is its hash where it is known.
    """
    path = bundle / recorded.path
    if Path(recorded.path).name != recorded.path:
        raise ArtifactError(f"{recorded.path} is not a file name", ALTERED)
    if not os.path.lexists(path):
        raise ArtifactError(f"{path} is missing", ALTERED)
    size, digest = _held(path, found)
    if size != recorded.bytes:
        raise ArtifactError(f"{path} has {size} bytes, {recorded.bytes} were recorded", ALTERED)
    if digest != recorded.sha256:
        raise ArtifactError(f"{path} is not the file that was recorded: its SHA-256 differs", ALTERED)


def _held(path: Path, found: str | None) -> tuple[int, str]:
    """Size and hash of a file of a bundle. ArtifactError where it is none, or cannot be read."""
    try:
        with checksums.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
        return size, checksums.of_held(path) if found is None else found
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}", error.remedy or ALTERED) from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", "change its owner or its mode") from error


def stem(variant: str) -> str:
    """How the names of a variant's own files begin: its name, where a colon would not do."""
    return variant.replace(":", "-")


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
