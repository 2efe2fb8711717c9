"""What a bundle proves itself by: sums, a bill of materials, provenance, a signature. Made last, examined first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from exporter.bundle import checksums, layout, provenance, sbom, signing
from exporter.core import filesystem
from exporter.core.errors import AlteredError, ArtifactError, BundleError
from exporter.core.records import Manifest

REMEDY = "take it again from where it was published, or export again"
STATEMENTS = {layout.BOM: sbom.hashes, layout.PROVENANCE: provenance.subjects}  # and how their hashes are read
Problems = dict[str, str]  # by the file that each is about


@dataclass(frozen=True)
class Evidence:
    """What was found of a bundle: the hashes of its files, and what is wrong with them in words.

    `spoilt` are artifacts, or the golden, that are not what the manifest says; `problems` is all else.
    """

    place: Path
    digests: Mapping[str, str]
    problems: Problems
    spoilt: Problems
    notes: tuple[str, ...]

    def require(self, problems: Problems) -> None:
        """AlteredError where there are any."""
        if problems:
            raise AlteredError(f"{self.place} is not what was published: {'; '.join(problems.values())}", REMEDY)


def whole(place: Path, trust: signing.Trust = signing.ANYBODY) -> Manifest:
    """The manifest of a bundle, all of whose files are what it and all else that tells of them say.

    ArtifactError where there is no bundle, or one that was altered, or is not signed by who is trusted.
    """
    evidence = examine(place, trust)
    evidence.require(evidence.problems | evidence.spoilt)
    manifest = layout.read_manifest(place)
    for file in manifest.files:
        layout.verify(place, file, evidence.digests.get(file.path))
    return manifest


def seal(root: Path, manifest: Manifest, materials: tuple[provenance.Material, ...]) -> None:
    """Write the bill, the provenance and the sums of a bundle that is complete. Recorded files are not hashed again."""
    known = _recorded(manifest)
    filesystem.write_atomic(root / layout.BOM, sbom.render(manifest, known))
    digests = checksums.tree(root, known, (*layout.UNLISTED, layout.PROVENANCE), layout.REJECTED)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    finished = max(manifest.created, now)  # not before it began, where the clock was set back
    statement = provenance.statement(manifest, materials, finished, digests)
    filesystem.write_atomic(root / layout.PROVENANCE, statement)
    digests[layout.PROVENANCE] = checksums.of(root / layout.PROVENANCE)
    filesystem.write_atomic(root / checksums.NAME, checksums.text(digests))


def _recorded(manifest: Manifest) -> dict[str, str]:
    """The hashes of the artifacts and the golden, as they were recorded."""
    golden = [manifest.golden.file] if manifest.golden else []
    return {file.path: file.sha256 for file in (*golden, *(f for v in manifest.variants for f in v.files))}


def examine(place: Path, trust: signing.Trust | None) -> Evidence:
    """Hash every file of a bundle, once, and compare it with all that tells of it; signatures too where there is trust.

    ArtifactError when there is no bundle.
    """
    if not os.path.lexists(place / checksums.NAME):
        layout.read_manifest(place)  # says where there is no bundle
    try:
        found = checksums.tree(place, {}, layout.UNLISTED, layout.REJECTED)
    except OSError as error:
        raise ArtifactError(
            f"{place} cannot be read: {error.strerror}: {error.filename}", "change its owner"
        ) from error
    problems, spoilt, notes = dict[str, str](), dict[str, str](), list[str]()
    if found.keys() & STATEMENTS.keys() or os.path.lexists(place / checksums.NAME):
        problems = _against_sums(place, found, signatures=trust is not None)
        spoilt = _spoilt(place, problems, found)
        problems = {name: said for name, said in problems.items() if name not in spoilt}
        for name, said in _against_statements(place, found, problems):
            if name not in spoilt:
                problems.setdefault(name, said)
    else:
        notes.append(
            f"there is no {checksums.NAME}: an earlier exporter made this bundle, and not all of it can be checked"
        )
    if trust is not None:
        for name, said, wrong in signatures(place, trust):
            if wrong:
                problems.setdefault(name, said)
            else:
                notes.append(said)
    return Evidence(place, found, problems, spoilt, tuple(notes))


def _against_sums(place: Path, found: Mapping[str, str], signatures: bool) -> Problems:
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
    """Those problems that the manifest, which is whole, confirms: of artifacts and of the golden."""
    if not problems or problems.keys() & {layout.MANIFEST, checksums.NAME}:
        return {}
    recorded = _recorded(layout.read_manifest(place))
    return {n: said for n, said in problems.items() if n in recorded and recorded[n] != found.get(n)}


def _against_statements(place: Path, found: Mapping[str, str], problems: Problems) -> Iterator[tuple[str, str]]:
    """What the bill and the provenance say otherwise, as far as these are whole."""
    for file in STATEMENTS:
        if file in found and file not in problems:
            try:
                listed = told(place, file)
            except ArtifactError as error:
                yield file, str(error)
                continue
            about = {n: digest for n, digest in found.items() if n != file and (n in listed or file != layout.BOM)}
            yield from checksums.differences(listed, about, file).items()


def told(place: Path, statement: str) -> dict[str, str]:
    """The hashes that the bill or the provenance of a bundle tells. ArtifactError where it cannot be read."""
    try:
        return STATEMENTS[statement](checksums.read_bounded(place / statement))
    except ArtifactError as error:
        raise ArtifactError(f"{statement}: {error}", error.remedy) from error


def signatures(place: Path, trust: signing.Trust) -> Iterator[tuple[str, str, bool]]:
    """About each signature that is there, or that was asked for: its file, what is to be said, whether it is wrong."""
    for file, asked, options, require in (
        (layout.SIGNATURE, trust.public_key, "--public-key", signing.require_key),
        (layout.SIGSTORE, trust.identity, "--identity and --issuer", signing.require_identity),
    ):
        if os.path.lexists(place / (file + filesystem.NEW)):
            yield (
                file + filesystem.NEW,
                f"{file}{filesystem.NEW} is left of a signing that was cut off: remove it",
                False,
            )
        if not os.path.lexists(place / file):
            if asked:
                yield file, f"it is not signed: {file} is missing", True
            continue
        try:
            require(checksums.read_bounded(place / layout.PROVENANCE), checksums.read_bounded(place / file), trust)
        except ArtifactError as error:
            yield file, f"{file}: {error}", True
        else:
            if not asked:
                yield file, f"the signature {file} was not verified: give {options}", False


def sign(place: Path, key: Path | None, ask: Callable[[], str]) -> Path:
    """Sign a bundle that is whole, by a key or else by sigstore; returns the signature's file.

    BundleError where it cannot be written.
    """
    evidence = examine(place, None)
    evidence.require(evidence.problems | evidence.spoilt)
    if layout.PROVENANCE not in evidence.digests:
        raise ArtifactError(f"{place} has no {layout.PROVENANCE} to sign", "export again: an earlier exporter made it")
    payload = checksums.read_bounded(place / layout.PROVENANCE)
    path = place / (layout.SIGNATURE if key else layout.SIGSTORE)
    text = signing.with_key(payload, key, ask) if key else signing.keyless(payload)
    try:
        path.with_name(path.name + filesystem.NEW).unlink(missing_ok=True)  # whoever made it, it may be a link
        _list(place, path.name, "")
        filesystem.write_atomic(path, text)
        _list(place, path.name, checksums.of_held(path))
    except OSError as error:
        raise BundleError(str(filesystem.error(error, path)), "sign it where it can be written to") from error
    return path


def _list(place: Path, name: str, digest: str) -> None:
    """Let `SHA256SUMS` list a signature; with no digest, not any more: one that it does not list may be there too."""
    listed = checksums.read(place) or {}
    others = {other: known for other, known in listed.items() if other != name}
    wanted = others | ({name: digest} if digest else {})
    if wanted != listed:
        filesystem.write_atomic(place / checksums.NAME, checksums.text(wanted))
