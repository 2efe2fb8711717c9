"""A bundle as one file, NAME.tar.zst: the same bundle gives the same bytes, and what comes out is what was recorded.

In the tar stand `bundle/manifest.json`, then what it records, what proves it, and the logs, each by name, all with one
mode and owner and no time. A reader trusts none of it. zstd (RFC 8878) looks for repetition as far back as `WINDOW`
allows, so weights that several artifacts hold alike are stored once; a reader keeps that much in memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from exporter.bundle import checksums, integrity, layout, publishing
from exporter.bundle.layout import LOGS, MANIFEST
from exporter.bundle.signing import ANYBODY, Trust
from exporter.core import filesystem
from exporter.core.errors import ArtifactError, ExporterError, UsageError
from exporter.core.json_codec import from_json
from exporter.core.records import ArtifactRecord, Manifest

SUFFIX = ".tar.zst"
TOP = "bundle/"
PROOFS = (layout.BOM, layout.PROVENANCE, checksums.NAME, layout.SIGNATURE, layout.SIGSTORE)
WINDOW = 30  # log2 of bytes
LEVEL = 1  # weights are noise: more effort finds nothing
THREADS = 4  # any number but 0 gives the same bytes
MANIFEST_BYTES = 1 << 24
LOG_FILES = 10_000
CHUNK = 1 << 20
PLAIN = re.compile(r"\w[\w@.,=+-]*", re.ASCII)
REMEDY = "give a file that `exporter pack` made, as it was made"


def pack(place: Path, out: Path, trust: Trust = ANYBODY) -> int:
    """Write a bundle to the file `out`, which is there in the end or is as it was; how many bytes went in.

    ArtifactError when the bundle is not what its manifest records, or is not signed by who is trusted; UsageError when
    it holds other files.
    """
    manifest = integrity.whole(place, trust)
    names = _names(place, manifest)
    if out.resolve().is_relative_to(place.resolve()):
        raise UsageError(f"{out} lies in the bundle itself", "give another --out")
    new = filesystem.own_new(out)
    try:
        with new.open("xb") as file:
            total = _write(place, names, file)
            os.fsync(file.fileno())
        new.replace(out)
        filesystem.sync(out.parent)
    except OSError as error:
        raise filesystem.error(error, out) from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    return total


def _names(place: Path, manifest: Manifest) -> list[str]:
    """The files to pack, in order. UsageError for files that exporter did not write."""
    recorded = [*sorted(_recorded(manifest)), *(name for name in PROOFS if os.path.lexists(place / name))]
    folder = place / LOGS
    linked = {name for name in (LOGS, layout.REJECTED) if (place / name).is_symlink()}
    logs = [] if LOGS in linked else sorted(f"{LOGS}/{log.name}" for log in folder.glob("*"))
    held = {entry.name for entry in place.iterdir()}
    foreign = held.difference(recorded, layout.UNLISTED, (MANIFEST, LOGS, layout.REJECTED)) | linked
    foreign.update(log for log in logs if not (_is_log(log) and stat.S_ISREG((place / log).lstat().st_mode)))
    if foreign:
        raise UsageError(
            f"{place} holds {', '.join(sorted(foreign)[:3])}, which exporter did not write", "move them elsewhere"
        )
    return [MANIFEST, *recorded, *logs]


def _write(place: Path, names: list[str], file: BinaryIO) -> int:
    total = sum((place / name).lstat().st_size for name in names)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        window_log=min(WINDOW, max(20, total.bit_length())),
        enable_ldm=True,
        threads=THREADS,
        write_checksum=True,
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with (
        compressor.stream_writer(file, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name in names:
            info = tarfile.TarInfo(TOP + name)
            with checksums.opened(place / name) as content:
                info.size = os.fstat(content.fileno()).st_size
                tar.addfile(info, content)
    return total


def unpack(path: Path, out: Path, limit: int) -> Manifest:
    """Put a packed bundle in the place `out`, as an export would, when all of it is what its manifest records.

    No more than `limit` bytes are taken from the file once they are decompressed. ArtifactError for a file that is not
    what `pack` writes or holds more; BundleError when the place cannot be taken.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    with file:
        return receive(file, str(path), out, limit)


def receive(packed: BinaryIO | memoryview, name: str, out: Path, limit: int) -> Manifest:
    """As `unpack`, of what is in memory or comes from elsewhere; `name` is how errors call it."""
    with publishing.stage(out) as staging:
        try:
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW)
            ending: Any = _Ending(packed)  # stream_reader wants no more of a file than read()
            manifest = _extract(_Source(decompressor.stream_reader(ending), limit), staging.root)
            if ending.held:
                raise ValueError("more follows its end")
        except (ExporterError, ValueError, tarfile.TarError, zstandard.ZstdError) as error:
            remedy = error.remedy if isinstance(error, ExporterError) else ""
            raise ArtifactError(f"{name} cannot be unpacked: {error}", remedy or REMEDY) from error
        staging.publish()
    return manifest


@dataclass
class _Ending:
    """What is packed, but its last byte comes alone: only a decompressor that has to go to the very end asks for it."""

    packed: BinaryIO | memoryview
    held: bytes = b""

    def read(self, size: int) -> bytes:
        """Up to that many bytes, 2 or more."""
        data = self.held + self._more(size - 1)
        self.held = data[-1:] if len(data) > 1 else b""
        return data[:-1] if self.held else data

    def _more(self, size: int) -> bytes:
        if not isinstance(self.packed, memoryview):
            return self.packed.read(size)
        more, self.packed = self.packed[:size], self.packed[size:]
        return bytes(more)


@dataclass
class _Source:
    """What comes out of the decompressor, as long as it may."""

    stream: zstandard.ZstdDecompressionReader
    left: int

    def expect(self, size: int) -> None:
        """ArtifactError when that many bytes are more than may come."""
        if size > self.left:
            raise ArtifactError("it holds more than is allowed", "where you trust it, allow more with --max-gb")

    def read(self, size: int) -> bytes:
        """That many bytes, as long as they may come; ValueError when it ends before."""
        self.expect(size)
        data = self.stream.read(size)
        if len(data) < size:
            raise ValueError("it is cut short")
        self.left -= size
        return data

    def copy(self, size: int, path: Path) -> str:
        """Write that many bytes to a new file; their SHA-256."""
        digest = hashlib.sha256()
        with path.open("xb") as file:
            for start in range(0, size, CHUNK):
                data = self.read(min(CHUNK, size - start))
                digest.update(data)
                file.write(data)
        return digest.hexdigest()


def _extract(source: _Source, root: Path) -> Manifest:
    """Fill the directory; what is not expected is refused before a byte of it is read."""
    members = _members(source)
    name, size = next(members, ("", 0))
    if name != MANIFEST or size > MANIFEST_BYTES:
        raise ValueError(f"it does not begin with a {MANIFEST}")
    text = source.read(size)
    (root / MANIFEST).write_bytes(text)
    manifest = from_json(Manifest, text)
    missing, digests = _recorded(manifest), {MANIFEST: hashlib.sha256(text).hexdigest()}
    source.expect(sum(file.bytes for file in missing.values()))
    for name, size in members:
        file = missing.pop(name, None)
        known = file is not None or _is_log(name) or (name in PROOFS and size <= checksums.LIMIT)
        if not known or (root / name).exists():
            raise ValueError(f"{name!r} is no file of this bundle, or comes twice")
        if file and size != file.bytes:
            raise ValueError(f"{name} has {size} bytes, {file.bytes} were recorded")
        digests[name] = source.copy(size, root / name)
        if file and digests[name] != file.sha256:
            raise ValueError(f"{name} is not the file that was recorded: its SHA-256 differs")
    if missing:
        raise ValueError(f"{min(missing)} is missing")
    listed = checksums.read(root)
    if listed is not None:
        found = {name: digest for name, digest in digests.items() if name in listed or name not in layout.UNLISTED}
        if wrong := checksums.differences(listed, found, checksums.NAME):
            raise ValueError("; ".join(wrong.values()))
    for _, said, is_wrong in integrity.signatures(root, ANYBODY):
        if is_wrong:
            raise ValueError(said)
    return manifest


def _members(source: _Source) -> Iterator[tuple[str, int]]:
    """Names and sizes of the files in a tar stream; who asks for the next has read the one before.

    ValueError or TarError for whatever is no plain file below `bundle/`. tarfile itself would follow links, and take
    long names and extended headers of any size into memory.
    """
    count = 0
    while any(header := source.read(tarfile.BLOCKSIZE)):
        info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        count += 1
        if info.type != tarfile.REGTYPE or info.size < 0 or not info.name.startswith(TOP) or count > LOG_FILES:
            raise ValueError(f"{info.name!r} is no plain file of a bundle")
        yield info.name.removeprefix(TOP), info.size
        source.read(-info.size % tarfile.BLOCKSIZE)
    rest = source.stream.read(tarfile.RECORDSIZE + 1)  # to the end, where zstd's checksum is
    if any(rest) or len(rest) > tarfile.RECORDSIZE:
        raise ValueError("more follows its end")


def _recorded(manifest: Manifest) -> dict[str, ArtifactRecord]:
    """The files that a manifest records, by name. ArtifactError for names that no bundle holds."""
    files = {file.path: file for file in manifest.files}
    for name in files:
        if not PLAIN.fullmatch(name) or name in (MANIFEST, LOGS, *PROOFS):
            raise ArtifactError(f"the manifest records {name!r}, which is no file of a bundle", REMEDY)
    return files


def _is_log(name: str) -> bool:
    folder, _, log = name.partition("/")
    return folder == LOGS and PLAIN.fullmatch(log) is not None
