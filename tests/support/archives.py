"""Handwritten packed bundles, and the properties that hold for any content."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import zstandard

from exporter.bundle import archive, layout, publishing
from exporter.core.errors import ExporterError
from exporter.core.records import Manifest
from support.manifests import GOLDEN, manifest, variant

LIMIT = 1 << 20  # bytes
TRACE = b"a traced model" * 50
Member = tuple[tarfile.TarInfo, bytes]


def make_bundle(place: Path) -> Path:
    """Publish a bundle with one artifact, a golden and a log."""
    with publishing.stage(place) as staging:
        (staging.root / "trace.pt").write_bytes(TRACE)
        (staging.root / "golden.safetensors").write_bytes(b"golden")
        (staging.logs / "trace.log").write_text("all is well")
        golden = replace(GOLDEN, file=layout.record(staging.root / "golden.safetensors"))
        artifact = layout.record(staging.root / "trace.pt")
        staging.write(manifest(variant(artifact=artifact), golden=golden))
        return staging.publish()


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    """Return a tar header that matches its data, and the data."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


def members_of(data: bytes) -> list[Member]:
    """Return the members of a packed bundle."""
    stream = zstandard.ZstdDecompressor().stream_reader(data)
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        return [(info, content.read()) for info in tar if (content := tar.extractfile(info))]


def tar_of(members: Sequence[Member]) -> bytes:
    """Return a tar of the members, valid or not, with an end marker."""
    blocks = (
        info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % tarfile.BLOCKSIZE)
        for info, data in members
    )
    return b"".join(blocks) + bytes(2 * tarfile.BLOCKSIZE)


def compressed(tar: bytes) -> bytes:
    """Compress a tar as `pack` does."""
    return zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=False).compress(tar)


def packed(place: Path) -> bytes:
    """Return the bytes of a packed bundle."""
    out = place.with_name("packed.tar.zst")
    archive.pack(place, out)
    return out.read_bytes()


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def attempt(data: bytes, folder: Path) -> Manifest | None:
    """Unpack to `folder`/place/out, and assert that nothing else changes and that the result is complete or absent."""
    out, file, sentinel = folder / "place" / "out", folder / "hostile.tar.zst", folder / "sentinel" / "kept"
    sentinel.parent.mkdir(parents=True, exist_ok=True)
    sentinel.write_text("kept")
    file.write_bytes(data)
    found = None
    with contextlib.suppress(ExporterError):
        found = archive.unpack(file, out, LIMIT)
    held = tree(folder)
    assert held.pop("sentinel/kept") == b"kept"
    assert held.pop("hostile.tar.zst") == data
    assert all(name.startswith("place/out/") for name in held)
    assert bool(held) == (found is not None)
    if found:
        for recorded in found.files:
            layout.verify(out, recorded)
        layout.remove(out)
    return found
