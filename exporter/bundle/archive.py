"""Pack a bundle into one reproducible file, NAME.tar.zst, and unpack it with every file verified.

The tar contains `bundle/manifest.json`, then the files that it records, the integrity files and the logs, each group
sorted by name, with a constant mode, owner and time. A reader trusts nothing in it. zstd (RFC 8878) finds repetitions
within `WINDOW`, so weights that several artifacts share are stored once; a reader needs that much memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
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
LEVEL = 1  # weights are incompressible, so higher levels gain nothing
THREADS = 4  # the output is the same for any number except 0
MANIFEST_BYTES = 1 << 24
LOG_FILES = 10_000
CHUNK = 1 << 20
PLAIN = re.compile(r"\w[\w@.,=+-]*", re.ASCII)
REMEDY = "give an unmodified file that `exporter pack` wrote"


def pack(place: Path, out: Path, trust: Trust = ANYBODY) -> int:
    """Write a bundle to the file `out`, as in filesystem.replacing; return the number of bytes before compression.

    Raises ArtifactError if the bundle does not match its records or lacks a trusted signature, and UsageError if it
    contains files that exporter did not write.
    """
    manifest = integrity.whole(place, trust)
    names = _names(place, manifest)
    if out.resolve().is_relative_to(place.resolve()):
        raise UsageError(f"{out} is inside the bundle", "give another --out")
    try:
        with filesystem.replacing(out) as file:
            return _write(place, names, file)
    except OSError as error:
        raise filesystem.error(error, out) from error


def _names(place: Path, manifest: Manifest) -> list[str]:
    """Return the files to pack, in order. Raises UsageError for files that exporter did not write."""
    recorded = [*sorted(_recorded(manifest)), *(name for name in PROOFS if os.path.lexists(place / name))]
    folder = place / LOGS
    linked = {name for name in (LOGS, layout.REJECTED) if (place / name).is_symlink()}
    logs = [] if LOGS in linked else sorted(f"{LOGS}/{log.name}" for log in folder.glob("*"))
    held = {entry.name for entry in place.iterdir()}
    foreign = held.difference(recorded, layout.UNLISTED, (MANIFEST, LOGS, layout.REJECTED)) | linked
    foreign.update(log for log in logs if not (_is_log(log) and stat.S_ISREG((place / log).lstat().st_mode)))
    if foreign:
        raise UsageError(
            f"{place} contains {', '.join(sorted(foreign)[:3])}, which exporter did not write", "move them elsewhere"
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
    """Unpack a bundle to `out`, as an export would write it, after every file was verified.

    At most `limit` decompressed bytes are read. Raises ArtifactError for a file that `pack` did not write or that
    exceeds the limit, and BundleError if `out` cannot be written.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    with file:
        return receive(file, str(path), out, limit)


def receive(packed: BinaryIO | memoryview, name: str, out: Path, limit: int) -> Manifest:
    """Unpack like `unpack`, from memory or a stream; errors refer to it as `name`."""
    with publishing.stage(out) as staging:
        try:
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW)
            ending: Any = _Ending(packed)  # stream_reader only needs read()
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
    """The packed data, with the last byte held back for a separate read.

    If the decompressor never asks for that byte, more data follows the end of the frame.
    """

    packed: BinaryIO | memoryview
    held: bytes = b""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; `size` is 2 or more."""
        data = self.held + self._more(size - 1)
        self.held = data[-1:] if len(data) > 1 else b""
        return data[:-1] if self.held else data

    def _more(self, size: int) -> bytes:
        if not isinstance(self.packed, memoryview):
            try:
                return self.packed.read(size)
            except OSError as error:
                raise ValueError(f"it cannot be read: {error.strerror or error}") from error
        more, self.packed = self.packed[:size], self.packed[size:]
        return bytes(more)


@dataclass
class _Source:
    """The decompressed stream, with a limit on its length."""

    stream: zstandard.ZstdDecompressionReader
    left: int

    def expect(self, size: int) -> None:
        """Raise ArtifactError if `size` more bytes would exceed the limit."""
        if size > self.left:
            raise ArtifactError("its content exceeds the size limit", "if you trust it, raise the limit with --max-gb")

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes within the limit. Raises ValueError if the stream ends before."""
        self.expect(size)
        data = self.stream.read(size)
        if len(data) < size:
            raise ValueError("it is truncated")
        self.left -= size
        return data

    def copy(self, size: int, path: Path) -> str:
        """Write `size` bytes to a new file and return their SHA-256."""
        digest = hashlib.sha256()
        with path.open("xb") as file:
            for start in range(0, size, CHUNK):
                data = self.read(min(CHUNK, size - start))
                digest.update(data)
                file.write(data)
        return digest.hexdigest()


def _extract(source: _Source, root: Path) -> Manifest:
    """Extract into the directory; reject an unexpected member before reading its content."""
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
            raise ValueError(f"{name!r} does not belong to this bundle, or occurs twice")
        if file and size != file.bytes:
            raise ValueError(f"{name} has {size} bytes, not the recorded {file.bytes}")
        digests[name] = source.copy(size, root / name)
        if file and digests[name] != file.sha256:
            raise ValueError(f"{name} does not match its record: the SHA-256 differs")
    if missing:
        raise ValueError(f"{min(missing)} is missing")
    _verify(root, {name: digest for name, digest in digests.items() if name not in layout.UNLISTED})
    for _, message, is_wrong, _ in integrity.signatures(root, ANYBODY):
        if is_wrong:
            raise ValueError(message)
    return manifest


def _verify(root: Path, digests: dict[str, str]) -> None:
    """Compare the hashes with `SHA256SUMS`, the bill of materials and the provenance. Raises ValueError if they differ.

    Bundles of an earlier exporter have none of the three.
    """
    if (root / checksums.NAME).exists() or digests.keys() & integrity.STATEMENTS.keys():
        problems = integrity.against_sums(root, digests, signatures=True)
        for name, message in integrity.against_statements(root, digests, problems):
            problems.setdefault(name, message)
        if problems:
            raise ValueError("; ".join(problems.values()))


def _members(source: _Source) -> Iterator[tuple[str, int]]:
    """Yield the names and sizes of the files in a tar stream; the caller reads each file before the next one.

    Raises ValueError or TarError for anything but a plain file below `bundle/`. tarfile itself would follow links, and
    would load long names and extended headers of any size into memory.
    """
    count = 0
    while any(header := source.read(tarfile.BLOCKSIZE)):
        info = tarfile.TarInfo.frombuf(header, "ascii", "strict")
        if info.type == tarfile.GNUTYPE_LONGNAME:
            info = _long_name(info, source)
        count += 1
        if info.type != tarfile.REGTYPE or info.size < 0 or not info.name.startswith(TOP) or count > LOG_FILES:
            raise ValueError(f"{info.name!r} is not a plain file of a bundle")
        yield info.name.removeprefix(TOP), info.size
        source.read(-info.size % tarfile.BLOCKSIZE)
    rest = source.stream.read(tarfile.RECORDSIZE + 1)  # to the end, so that zstd verifies its checksum
    if any(rest) or len(rest) > tarfile.RECORDSIZE:
        raise ValueError("more follows its end")


def _long_name(info: tarfile.TarInfo, source: _Source) -> tarfile.TarInfo:
    """Read a name that is too long for a header, and return the header of its file, with that name.

    Raises ValueError unless the name is in one block, needs one, and begins as the header of its file says.
    """
    if not tarfile.LENGTH_NAME + 1 < info.size <= tarfile.BLOCKSIZE:
        raise ValueError(f"{info.name!r} is not the long name of a file")
    block, length = source.read(tarfile.BLOCKSIZE), info.size - 1
    file = tarfile.TarInfo.frombuf(source.read(tarfile.BLOCKSIZE), "ascii", "strict")
    if any(block[length:]) or file.name.encode("ascii") != block[: tarfile.LENGTH_NAME]:
        raise ValueError(f"{file.name!r} is not the file of the long name before it")
    file.name = block[:length].decode("ascii")
    return file


def _recorded(manifest: Manifest) -> dict[str, ArtifactRecord]:
    """Return the files that a manifest records, by name. Raises ArtifactError for names that a bundle cannot have."""
    files = {file.path: file for file in manifest.files}
    for name in files:
        if not PLAIN.fullmatch(name) or name in (MANIFEST, LOGS, *PROOFS):
            raise ArtifactError(f"the manifest records {name!r}, which cannot be a file of a bundle", REMEDY)
    return files


def _is_log(name: str) -> bool:
    folder, _, log = name.partition("/")
    return folder == LOGS and PLAIN.fullmatch(log) is not None
