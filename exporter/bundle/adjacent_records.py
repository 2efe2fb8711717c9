"""Verify an artifact against the records beside it before it is loaded. Never imports torch.

The records are `SHA256SUMS`, `manifest.json`, the bill of materials, the provenance, and signatures of the provenance.
Every record that exists must be readable, list the artifact, and match it. An artifact without any record is only as
trustworthy as its source; `required` and `signed` reject it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from exporter.bundle import checksums, integrity, layout
from exporter.bundle.signing import ANYBODY
from exporter.core.errors import AlteredError, ArtifactError, UsageError
from exporter.core.records import Manifest

Verify = Literal["if-present", "required", "signed"]
ALTERED = "download it again, or export again"
STRANGE = "download it with its bundle, or put an artifact from elsewhere into a folder of its own"
LINKS = 40  # maximum length of a chain of links, as in Linux
Hashes = dict[str, str]  # hashes by file name


@dataclass(frozen=True)
class Vouched:
    """A verified artifact: its file with all links resolved, and its target if the manifest beside it names one.

    `recorded` is whether any record has its hash.
    """

    path: Path
    target: str = ""
    recorded: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class _Records:
    """The records in one folder: the hashes in each, by the record's name, and the manifest."""

    folder: Path
    hashes: Mapping[str, Hashes]
    manifest: Manifest | None


def vouch(path: Path, verify: Verify = "if-present", public_key: Path | None = None) -> Vouched:
    """Verify an artifact against every record beside it, and beside each link to it; return the file to load.

    `required` demands a record with the file's hash. `signed` demands a provenance with that hash, signed by the key
    that belongs to `public_key`. Raises UsageError for a contradictory request, ArtifactError if there is no such file,
    and AlteredError if a record does not match or is missing.
    """
    if verify not in get_args(Verify):
        raise UsageError(f"there is no verify={verify!r}", f"choose {', '.join(get_args(Verify))}")
    if (verify == "signed") != (public_key is not None):
        raise UsageError("verify='signed' and public_key belong together", "give both, or neither")
    *links, file = _chain(path)
    digest = functools.cache(lambda: _digest(file))
    records = _records(file.parent)
    for link in links:
        _require_match(_records(link.parent), link.name, digest, known=bool(records.hashes))
    _require_match(records, file.name, digest, known=False)
    trust = replace(ANYBODY, public_key=public_key)
    for _, message, wrong, remedy in integrity.signatures(file.parent, trust):
        if wrong:
            raise AlteredError(f"{file} cannot be trusted: {message}", remedy)
    if verify != "if-present" and not records.hashes:
        needed = f"one of {', '.join((checksums.NAME, layout.MANIFEST, layout.PROVENANCE))} with its hash"
        raise AlteredError(f"{file} has no record beside it, and verify={verify!r} needs {needed}", STRANGE)
    return Vouched(file, _target(records.manifest, file.name), bool(records.hashes))


def _chain(path: Path) -> list[Path]:
    """Follow links from the path and return every step; the last is the file. Raises ArtifactError if it is not one."""
    try:
        found = [path.parent.resolve() / path.name]
        while found[-1].is_symlink():
            led = found[-1].parent / found[-1].readlink()
            found.append(led.parent.resolve() / led.name)
            if len(found) > LINKS:
                raise ArtifactError(f"{path} is a circular link", "check the path")
        with checksums.opened(found[-1]):
            return found
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except RuntimeError as error:  # circular links of folders
        raise ArtifactError(f"{path} cannot be read: {error}", "check the path") from error


def _digest(file: Path) -> str:
    try:
        return checksums.of_held(file)
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}", "change its owner or permissions") from error


def _records(folder: Path) -> _Records:
    """Read the records in a folder. Raises AlteredError if one exists but is not valid."""
    hashes: dict[str, Hashes] = {}
    manifest = None
    try:
        listed = checksums.read(folder)
        if listed is not None:
            hashes[checksums.NAME] = listed
        if os.path.lexists(folder / layout.MANIFEST):
            manifest = layout.read_manifest(folder)
            hashes[layout.MANIFEST] = {file.path: file.sha256 for file in manifest.files}
        for name in integrity.STATEMENTS:
            if os.path.lexists(folder / name):
                hashes[name] = integrity.listed_hashes(folder, name)
    except ArtifactError as error:
        remedy = STRANGE if error.remedy in ("", layout.ALTERED) else error.remedy
        raise AlteredError(f"a record beside the artifact is not valid: {folder}: {error}", remedy) from error
    return _Records(folder, hashes, manifest)


def _require_match(records: _Records, name: str, digest: Callable[[], str], known: bool) -> None:
    """Raise AlteredError if a record does not match the file, one of its companions or another record.

    Every record has to list the name, unless it is that of a link and the records at its target are `known`.
    """
    belongs = set(_companions(records, name))
    for record, listed in records.hashes.items():
        if name not in listed and not known:
            cause = f"{records.folder / name} is not among the files that {record} beside it lists"
            raise AlteredError(cause, STRANGE)
        for other in sorted(listed.keys() & {name, *belongs, *records.hashes} - {record}):
            found = digest() if other == name else checksums.held(records.folder, other)
            if found is None and other not in belongs:
                continue  # an absent record contradicts nothing
            if found != listed[other]:
                what = "is missing" if found is None else f"does not match {record}: the SHA-256 differs"
                raise AlteredError(f"{records.folder / other} {what}", ALTERED)


def _companions(records: _Records, name: str) -> Iterator[str]:
    """Yield the files that the artifact needs to load: those named after it and its variant's companions."""
    for listed in records.hashes.values():
        yield from (other for other in listed if other.startswith(f"{name}."))
    for variant in records.manifest.variants if records.manifest else ():
        if variant.artifact is not None and variant.artifact.path == name:
            yield from (file.path for file in variant.companions)


def _target(manifest: Manifest | None, name: str) -> str:
    variants = manifest.variants if manifest else ()
    return next((v.target for v in variants if v.artifact is not None and v.artifact.path == name), "")
