"""Faults of bundles: each file damaged in each way, and bundles damaged as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from exporter.bundle import checksums

Fault = Callable[[Path], object]
FILES = (
    "trace.pt", "golden.safetensors", "manifest.json", "SHA256SUMS", "bom.cdx.json", "provenance.json",
    "provenance.dsse.json", "logs/trace.log",
)  # fmt: skip
LOADED = (
    "trace.pt",
    "golden.safetensors",
    "manifest.json",
    "SHA256SUMS",
)  # files that a program that runs artifacts may read


def copy(bundle: Path, to: Path) -> Path:
    """Copy a bundle with hard links; a fault replaces files instead of changing them."""
    return Path(shutil.copytree(bundle, to, copy_function=os.link))


def rewrite(file: Path, data: bytes) -> None:
    """Replace a file."""
    assert file.read_bytes() != data, "the fault must change the file"
    file.unlink()
    file.write_bytes(data)


def flip(file: Path, share: float = 0.5) -> None:
    """Flip one bit, in the middle by default."""
    data = bytearray(file.read_bytes())
    data[int((len(data) - 1) * share)] ^= 1
    rewrite(file, bytes(data))


def _link(file: Path, to: str | Path) -> None:
    file.unlink()
    file.symlink_to(to)


def _linked(file: Path) -> None:
    outside = _outside(file) / "elsewhere"
    shutil.copy(file, outside)
    _link(file, outside)


def _outside(file: Path) -> Path:
    """Return the folder that contains the bundle."""
    return next(parent for parent in file.parents if (parent / "manifest.json").exists()).parent


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _large(file: Path) -> None:
    rewrite(file, file.read_bytes() + b"\0")
    os.truncate(file, 1 << 26)


OFTEN: Mapping[str, Fault] = {
    "missing": Path.unlink,
    "empty": lambda file: rewrite(file, b""),
    "cut": lambda file: rewrite(file, file.read_bytes()[: file.stat().st_size // 2]),
    "flipped": flip,
    "a link": _linked,
    "a folder": _folder,
    "a pipe": _pipe,
}
NIGHTLY: Mapping[str, Fault] = {
    "flipped at its head": lambda file: flip(file, 0.02),
    "flipped at its end": lambda file: flip(file, 0.98),
    "longer": lambda file: rewrite(file, file.read_bytes() + b"\n"),
    "noise": lambda file: rewrite(file, bytes(range(256)) * 8),
    "large": _large,
    "a link to nowhere": lambda file: _link(file, "nowhere"),
    "a link to itself": lambda file: _link(file, file.name),
    "an endless device": lambda file: _link(file, "/dev/zero"),
}


def _linked_logs(place: Path) -> None:
    (place / "logs").rename(place.parent / "logs")
    (place / "logs").symlink_to(place.parent / "logs")


def _sums_of_the_altered(place: Path) -> None:
    flip(place / "trace.pt")
    listed = checksums.read(place) or {}
    rewrite(place / checksums.NAME, checksums.text(listed | {"trace.pt": checksums.of(place / "trace.pt")}).encode())


def _another_artifact(place: Path) -> None:
    rewrite(place / "trace.pt", (place / "golden.safetensors").read_bytes())


WHOLE: Mapping[str, Fault] = {
    "a foreign file": lambda place: (place / "notes.txt").write_text("mine"),
    "a foreign folder": lambda place: (place / "mine").mkdir() or (place / "mine" / "a").touch(),
    "an extra link": lambda place: (place / "more.pt").symlink_to("trace.pt"),
    "logs outside the bundle": _linked_logs,
    "rejected artifacts outside the bundle": lambda place: (place / "rejected").symlink_to(place.parent),
    "sums of an altered artifact": _sums_of_the_altered,
    "an artifact replaced by another file": _another_artifact,
    "missing records": lambda place: [
        (place / name).unlink() for name in ("SHA256SUMS", "bom.cdx.json", "provenance.json")
    ],
}


def faults(nightly: bool) -> dict[str, tuple[str, Fault]]:
    """Return every fault by name: the path in the bundle, and the function that damages it."""
    kinds = {**OFTEN, **(NIGHTLY if nightly else {})}
    found = {f"{name}: {kind}": (name, fault) for name in FILES for kind, fault in kinds.items()}
    return found | {kind: (".", fault) for kind, fault in WHOLE.items()}
