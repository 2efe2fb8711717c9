"""What lies beside an artifact and tells of it, held against the artifact before anybody loads it. Never torch.

Records are `SHA256SUMS`, `manifest.json`, the bill and the provenance, and signatures over the last. One that is there
is read; one that contradicts, cannot be read or does not know the artifact refuses it. An artifact with no record
beside it is as trustworthy as whoever gave it: `required` and `signed` refuse that too.
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
ALTERED = "take it again from where it was published, or export again"
STRANGE = "take it with its bundle from where it was published; one of elsewhere goes into a folder of its own"
LINKS = 40  # that may follow each other, as in Linux
Told = dict[str, str]  # the hash of each file by its name


@dataclass(frozen=True)
class Vouched:
    """An artifact's file behind all links, and the target that made it, where the manifest beside it says so.

    `recorded` is whether any record has its hash.
    """

    path: Path
    target: str = ""
    recorded: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class _Records:
    """What one folder's records tell, by the record's name."""

    folder: Path
    told: Mapping[str, Told]
    manifest: Manifest | None


def vouch(path: Path, verify: Verify = "if-present", public_key: Path | None = None) -> Vouched:
    """The file to load for this path, once every record beside it agrees; of a link, beside what it leads to as well.

    `required` asks for a record with the file's hash; `signed` for a signature by the key to this public one over a
    provenance with that hash. UsageError for a contradictory request; ArtifactError where there is no such file;
    AlteredError where a record says otherwise or is missing.
    """
    if verify not in get_args(Verify):
        raise UsageError(f"there is no verify={verify!r}", f"choose {', '.join(get_args(Verify))}")
    if (verify == "signed") != (public_key is not None):
        raise UsageError("verify='signed' and public_key belong together", "give both, or neither")
    *links, file = _chain(path)
    digest = functools.cache(lambda: _digest(file))
    records = _records(file.parent)
    for link in links:
        _hold(_records(link.parent), link.name, digest, known=bool(records.told))
    _hold(records, file.name, digest, known=False)
    trust = replace(ANYBODY, public_key=public_key)
    for _, said, wrong in integrity.signatures(file.parent, trust):
        if wrong:
            raise AlteredError(f"{file} is not vouched for: {said}", ALTERED)
    if verify != "if-present" and not records.told:
        needed = f"one of {', '.join((checksums.NAME, layout.MANIFEST, layout.PROVENANCE))} with its hash"
        raise AlteredError(f"{file} has no record beside it, and verify={verify!r} needs {needed}", STRANGE)
    return Vouched(file, _target(records.manifest, file.name), bool(records.told))


def _chain(path: Path) -> list[Path]:
    """The path, and what each link leads to; the last is the file itself. ArtifactError where there is none."""
    try:
        found = [path.parent.resolve() / path.name]
        while found[-1].is_symlink():
            led = found[-1].parent / found[-1].readlink()
            found.append(led.parent.resolve() / led.name)
            if len(found) > LINKS:
                raise ArtifactError(f"{path} leads in a circle", "check the path")
        with checksums.opened(found[-1]):
            return found
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except RuntimeError as error:  # links of folders that lead in a circle
        raise ArtifactError(f"{path} cannot be read: {error}", "check the path") from error


def _digest(file: Path) -> str:
    try:
        return checksums.of_held(file)
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}", "change its owner or its mode") from error


def _records(folder: Path) -> _Records:
    """AlteredError for a record that is there and cannot be read."""
    told: dict[str, Told] = {}
    manifest = None
    try:
        listed = checksums.read(folder)
        if listed is not None:
            told[checksums.NAME] = listed
        if os.path.lexists(folder / layout.MANIFEST):
            manifest = layout.read_manifest(folder)
            told[layout.MANIFEST] = {file.path: file.sha256 for file in manifest.files}
        for name in integrity.STATEMENTS:
            if os.path.lexists(folder / name):
                told[name] = integrity.told(folder, name)
    except ArtifactError as error:
        remedy = STRANGE if error.remedy in ("", layout.ALTERED) else error.remedy
        raise AlteredError(f"what lies beside the artifact cannot be believed: {folder}: {error}", remedy) from error
    return _Records(folder, told, manifest)


def _hold(records: _Records, name: str, digest: Callable[[], str], known: bool) -> None:
    """AlteredError where a record contradicts the file of this name, what belongs to it, or another record.

    All of them have to know the name, but where it is a link to what is `known` elsewhere.
    """
    belongs = set(_companions(records, name))
    for record, told in records.told.items():
        if name not in told and not known:
            cause = f"{records.folder / name} is not among the files that {record} beside it knows"
            raise AlteredError(cause, STRANGE)
        for other in sorted(told.keys() & {name, *belongs, *records.told} - {record}):
            found = digest() if other == name else checksums.held(records.folder, other)
            if found is None and other not in belongs:
                continue  # a record that stayed behind contradicts nothing
            if found != told[other]:
                what = "is missing" if found is None else f"does not match {record}: its SHA-256 differs"
                raise AlteredError(f"{records.folder / other} {what}", ALTERED)


def _companions(records: _Records, name: str) -> Iterator[str]:
    """Files without which the artifact does not load: its variant's, and those that its name begins."""
    for told in records.told.values():
        yield from (other for other in told if other.startswith(f"{name}."))
    for variant in records.manifest.variants if records.manifest else ():
        if variant.artifact is not None and variant.artifact.path == name:
            yield from (file.path for file in variant.companions)


def _target(manifest: Manifest | None, name: str) -> str:
    variants = manifest.variants if manifest else ()
    return next((v.target for v in variants if v.artifact is not None and v.artifact.path == name), "")
