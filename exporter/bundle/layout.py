"""The files of a bundle: their names, and whether each matches its record."""

from __future__ import annotations

import hashlib
import itertools
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
PICKLED_GOLDEN = "golden.pt"  # from releases before golden schema 3
LOGS = "logs"
REJECTED = "rejected"  # folder of artifacts that failed the check, which no record lists and nothing ships
REASONS = "REASONS.txt"  # a file in REJECTED
BOM = "bom.cdx.json"
PROVENANCE = "provenance.json"
SIGNATURE, SIGSTORE = "provenance.dsse.json", "provenance.sigstore.json"
SIGNING = (checksums.NAME, SIGNATURE, SIGSTORE)  # written by `exporter sign`
UNLISTED = (*SIGNING, *(name + NEW for name in SIGNING))  # not listed in SHA256SUMS; the last are left by a killed run
LONGEST = 120  # characters of a variant's name in the names of its files
CACHE = ".cache.zip"  # suffix of the cache of a just-in-time variant
OURS = {MANIFEST, SAMPLES, GOLDEN, PICKLED_GOLDEN, LOGS, REJECTED, BOM, PROVENANCE, *UNLISTED}
ALTERED = "the bundle is incomplete or was altered: download it again, or export again"


def golden(bundle: Path) -> Path:
    """Return the path of a bundle's golden, under its current name or that of earlier releases."""
    pickled = bundle / PICKLED_GOLDEN
    return pickled if pickled.exists() and not (bundle / GOLDEN).exists() else bundle / GOLDEN


def record(path: Path) -> ArtifactRecord:
    """Record the name, the size and the hash of a file of a bundle."""
    return ArtifactRecord(path.name, path.stat().st_size, checksums.of(path))


def artifacts() -> dict[str, str]:
    """Map the names of all files that the usable targets can write, including companions, to their targets."""
    found: dict[str, str] = {}
    for name, target in targets.usable().items():
        for setting, precision in itertools.product(target.variants, PRECISIONS):
            variant = targets.Variant(name, setting, precision)
            if not targets.is_live(variant):
                found |= {variant.artifact + suffix: name for suffix in ("", *targets.facts(name).companions)}
    return found


def target_of(name: str) -> str:
    """Return the target that writes files of this name; "" if none does."""
    known = artifacts()
    if name in known:
        return known[name]
    for whole, target in known.items():  # with layers in float32: trace@int8+head.pt
        stem, dot, suffix = whole.partition(".")
        if "@" in stem and name.startswith(f"{stem}+") and name.endswith(dot + suffix):
            return target
    return ""


def read_manifest(bundle: Path) -> Manifest:
    """Read the manifest of a bundle. Raises ArtifactError if it is missing, invalid or does not match SHA256SUMS."""
    path = bundle / MANIFEST
    try:
        data = checksums.bounded(path)
        listed = checksums.read(bundle)
        if listed is not None and listed.get(MANIFEST) != hashlib.sha256(data).hexdigest():
            raise ArtifactError(f"it does not match {checksums.NAME}", ALTERED)
        return from_json(Manifest, data)
    except OSError as error:
        raise ArtifactError(
            f"{bundle} is not a bundle: {error.strerror}: {path}", "give a directory that `exporter export` wrote"
        ) from error
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}", error.remedy or ALTERED) from error


def verify(bundle: Path, recorded: ArtifactRecord, found: str | None = None) -> None:
    """Raise ArtifactError if a file of the bundle is missing or does not match its record.

    `found` is its hash, if that is already known.
    """
    path = bundle / recorded.path
    if Path(recorded.path).name != recorded.path:
        raise ArtifactError(f"{recorded.path} is not a file name", ALTERED)
    if not os.path.lexists(path):
        raise ArtifactError(f"{path} is missing", ALTERED)
    size, digest = _held(path, found)
    if size != recorded.bytes:
        raise ArtifactError(f"{path} has {size} bytes, not the recorded {recorded.bytes}", ALTERED)
    if digest != recorded.sha256:
        raise ArtifactError(f"{path} does not match its record: the SHA-256 differs", ALTERED)


def _held(path: Path, found: str | None) -> tuple[int, str]:
    """Return the size and the hash of a file of a bundle. Raises ArtifactError if it is not a readable file."""
    try:
        with checksums.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
        return size, checksums.of_held(path) if found is None else found
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}", error.remedy or ALTERED) from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", "change its owner or permissions") from error


def stem(variant: str) -> str:
    """Return the prefix of a variant's file names: its name without colons. Long names are hashed."""
    name = variant.replace(":", "-")
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def remove(folder: Path) -> None:
    """Remove a folder and its contents; ignore errors."""
    shutil.rmtree(folder, ignore_errors=True)
