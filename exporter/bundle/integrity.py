"""Write and verify the integrity files of a bundle: hashes, a bill of materials, provenance and signatures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from exporter.bundle import checksums, layout, provenance, sbom, signing
from exporter.core import filesystem
from exporter.core.errors import AlteredError, ArtifactError
from exporter.core.records import Manifest

REMEDY = "download it again, or export again"
UNSIGNED = "sign it with `exporter sign`, or get a signed copy from whom you trust"
STATEMENTS = {layout.BOM: sbom.hashes, layout.PROVENANCE: provenance.subjects}  # the functions that read the hashes
Problems = dict[str, str]  # messages by the file that they concern


@dataclass(frozen=True)
class Evidence:
    """The result of examining a bundle: the hashes of its files, and messages on what is wrong.

    `spoilt` has the artifacts and the golden that do not match the manifest; `problems` has everything else.
    """

    place: Path
    digests: Mapping[str, str]
    problems: Problems
    spoilt: Problems
    notes: tuple[str, ...]
    unsigned: str = ""  # the remedy if the only problem is that it lacks the required signature

    def require(self, problems: Problems) -> None:
        """Raise AlteredError if there are any problems."""
        if problems:
            raise AlteredError(
                f"{self.place} failed verification: {'; '.join(problems.values())}", self.unsigned or REMEDY
            )


def whole(place: Path, trust: signing.Trust = signing.ANYBODY) -> Manifest:
    """Verify every file of a bundle against every record of it, and return the manifest.

    Raises ArtifactError if there is no bundle, and AlteredError if it was altered or lacks a trusted signature.
    """
    evidence = examine(place, trust)
    evidence.require(evidence.problems | evidence.spoilt)
    manifest = layout.read_manifest(place)
    for file in manifest.files:
        layout.verify(place, file, evidence.digests.get(file.path))
    return manifest


def shown(place: Path) -> Manifest:
    """Read a manifest that is only shown: compare it and the samples with every record beside them, and nothing else.

    Raises ArtifactError if one of them does not match.
    """
    manifest = layout.read_manifest(place)
    for statement in STATEMENTS:
        if not os.path.lexists(place / statement):
            continue
        listed = listed_hashes(place, statement)
        for name in (layout.MANIFEST, layout.SAMPLES):
            if name in listed and checksums.of_held(place / name) != listed[name]:
                raise ArtifactError(f"{place / name} does not match {statement}", layout.ALTERED)
    return manifest


def seal(root: Path, manifest: Manifest, materials: tuple[provenance.Material, ...]) -> None:
    """Write the bill of materials, the provenance and SHA256SUMS of a complete bundle, reusing recorded hashes."""
    known = _recorded(manifest)
    filesystem.write_atomic(root / layout.BOM, sbom.render(manifest, known))
    digests = checksums.tree(root, known, (*layout.UNLISTED, layout.PROVENANCE), layout.REJECTED)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    finished = max(manifest.created, now)  # not before the start, even if the clock was set back
    statement = provenance.statement(manifest, materials, finished, digests)
    filesystem.write_atomic(root / layout.PROVENANCE, statement)
    digests[layout.PROVENANCE] = checksums.of(root / layout.PROVENANCE)
    filesystem.write_atomic(root / checksums.NAME, checksums.text(digests))


def _recorded(manifest: Manifest) -> dict[str, str]:
    """Return the recorded hashes of the artifacts and the golden."""
    golden = [manifest.golden.file] if manifest.golden else []
    return {file.path: file.sha256 for file in (*golden, *(f for v in manifest.variants for f in v.files))}


def examine(place: Path, trust: signing.Trust | None) -> Evidence:
    """Hash every file of a bundle once and compare it with all records; with `trust`, verify the signatures too.

    Raises ArtifactError if there is no bundle.
    """
    if not os.path.lexists(place / checksums.NAME):
        layout.read_manifest(place)  # raises if there is no bundle
    try:
        found = checksums.tree(place, {}, layout.UNLISTED, layout.REJECTED)
    except OSError as error:
        raise ArtifactError(
            f"{place} cannot be read: {error.strerror}: {error.filename}", "change its owner or permissions"
        ) from error
    problems, spoilt, notes, remedies = dict[str, str](), dict[str, str](), list[str](), list[str]()
    if found.keys() & STATEMENTS.keys() or os.path.lexists(place / checksums.NAME):
        problems = against_sums(place, found, signatures=trust is not None)
        spoilt = _spoilt(place, problems, found)
        problems = {name: message for name, message in problems.items() if name not in spoilt}
        for name, message in against_statements(place, found, problems):
            if name not in spoilt:
                problems.setdefault(name, message)
    else:
        notes.append(
            f"there is no {checksums.NAME}: an earlier exporter wrote this bundle, and not all files can be verified"
        )
    if trust is not None:
        altered = bool(problems or spoilt)
        for name, message, wrong, remedy in signatures(place, trust):
            if wrong:
                problems.setdefault(name, message)
                remedies.append(REMEDY if altered else remedy)
            else:
                notes.append(message)
    return Evidence(place, found, problems, spoilt, tuple(notes), remedies[0] if len(set(remedies)) == 1 else "")


def against_sums(place: Path, found: Mapping[str, str], signatures: bool) -> Problems:
    """Return the files that do not match `SHA256SUMS`, with `signatures` also those of the signatures.

    `found` has the hashes of the bundle's files, without those in layout.UNLISTED.
    """
    try:
        listed = checksums.read(place)
    except ArtifactError as error:
        return {checksums.NAME: str(error)}
    if listed is None:
        return {checksums.NAME: f"{checksums.NAME} is missing"}
    needed = {name: f"{name} is missing" for name in (layout.MANIFEST, *STATEMENTS) if name not in found}
    signed = {name: listed.pop(name) for name in (layout.SIGNATURE, layout.SIGSTORE) if name in listed}
    if signatures:
        held = {name: digest for name in signed if (digest := checksums.held(place, name)) is not None}
        needed |= checksums.differences(signed, held, checksums.NAME)
    return checksums.differences(listed, found, checksums.NAME) | needed


def _spoilt(place: Path, problems: Problems, found: Mapping[str, str]) -> Problems:
    """Select the problems of artifacts and the golden that the manifest, if intact, confirms."""
    if not problems or problems.keys() & {layout.MANIFEST, checksums.NAME}:
        return {}
    recorded = _recorded(layout.read_manifest(place))
    return {n: message for n, message in problems.items() if n in recorded and recorded[n] != found.get(n)}


def against_statements(place: Path, found: Mapping[str, str], problems: Problems) -> Iterator[tuple[str, str]]:
    """Yield the files that do not match the bill of materials or the provenance, as far as these are intact."""
    for file in STATEMENTS:
        if file in found and file not in problems:
            try:
                listed = listed_hashes(place, file)
            except ArtifactError as error:
                yield file, str(error)
                continue
            about = {n: digest for n, digest in found.items() if n != file and (n in listed or file != layout.BOM)}
            yield from checksums.differences(listed, about, file).items()


def listed_hashes(place: Path, statement: str) -> dict[str, str]:
    """Read the hashes in the bill of materials or the provenance. Raises ArtifactError if it is not valid."""
    try:
        return STATEMENTS[statement](checksums.read_bounded(place / statement))
    except ArtifactError as error:
        raise ArtifactError(f"{statement}: {error}", error.remedy) from error


def signatures(place: Path, trust: signing.Trust) -> Iterator[tuple[str, str, bool, str]]:
    """Yield the file, a message, whether it is wrong, and a remedy, for each signature that exists or is required.

    Files that an interrupted signing left are not wrong.
    """
    for left in (name + filesystem.NEW for name in layout.SIGNING):
        if os.path.lexists(place / left):
            yield left, f"{left} is left over from an interrupted signing: remove it", False, ""
    for file, asked, options, require in (
        (layout.SIGNATURE, trust.public_key, "--public-key", signing.require_key),
        (layout.SIGSTORE, trust.identity, "--identity and --issuer", signing.require_identity),
    ):
        if not os.path.lexists(place / file):
            if asked:
                yield file, f"it is not signed: {file} is missing", True, UNSIGNED
            continue
        try:
            require(checksums.read_bounded(place / layout.PROVENANCE), checksums.read_bounded(place / file), trust)
        except ArtifactError as error:
            yield file, f"{file}: {error}", True, error.remedy or REMEDY
        else:
            if not asked:
                yield file, f"the signature {file} was not verified: give {options}", False, ""


def sign(place: Path, key: Path | None, ask: Callable[[], str]) -> Path:
    """Verify a bundle, sign it with a key or with sigstore, and return the path of the signature.

    Raises AlteredError if the bundle was altered, or has a signature of another provenance, and BundleError if the
    signature cannot be written.
    """
    evidence = examine(place, signing.ANYBODY)
    evidence.require(evidence.problems | evidence.spoilt)
    if layout.PROVENANCE not in evidence.digests:
        raise ArtifactError(f"{place} has no {layout.PROVENANCE} to sign", "export again: an earlier exporter wrote it")
    payload = checksums.read_bounded(place / layout.PROVENANCE)
    path = place / (layout.SIGNATURE if key else layout.SIGSTORE)
    text = signing.with_key(payload, key, ask) if key else signing.keyless(payload)
    try:
        for left in (path.name, checksums.NAME):
            path.with_name(left + filesystem.NEW).unlink(missing_ok=True)  # it may be a link
        _list(place, path.name, "")
        filesystem.write_atomic(path, text)
        _list(place, path.name, checksums.of_held(path))
    except OSError as error:
        raise filesystem.error(error, path, "sign a copy in a writable place") from error
    return path


def _list(place: Path, name: str, digest: str) -> None:
    """Add a signature to `SHA256SUMS`; without a digest, remove it: an unlisted signature is allowed."""
    listed = checksums.read(place) or {}
    others = {other: known for other, known in listed.items() if other != name}
    wanted = others | ({name: digest} if digest else {})
    if wanted != listed:
        filesystem.write_atomic(place / checksums.NAME, checksums.text(wanted))
