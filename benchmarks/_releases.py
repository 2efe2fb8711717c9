"""Compare two releases: their finished steps, every file, and the variant in each manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exporter.bundle import checksums, layout
from exporter.bundle.differences import compare

EXAMPLE = Path(__file__).parent.parent / "examples" / "release.toml"
# What differs between any two runs: times, memory and paths in manifests, and the files that record them.
OWN = {"lifecycle", "load_s", "first_call_ms", "peak_rss_mb", "reproduce"}
APART = {layout.MANIFEST, layout.BOM, layout.PROVENANCE, checksums.NAME, "release.json"}


def keys(out: Path) -> dict[str, str]:
    """Return the key of each finished step."""
    state = out / "release.json"
    found = json.loads(state.read_text())["steps"] if state.exists() else {}
    return {name: step["key"] for name, step in found.items()}


def differences(one: Path, other: Path) -> list[str]:
    """Describe the differences in finished steps, bytes of files, and manifests without the fields in OWN."""
    found = [f"in only one release: {name}" for name in sorted(_names(one) ^ _names(other))]
    found += [] if keys(one) == keys(other) else ["release.json"]
    for file in sorted(one.rglob("manifest.json")):
        name = file.relative_to(one)
        if (other / name).exists() and _settled(file) != _settled(other / name):
            found.append(str(name))
    for file in (path for path in one.rglob("*") if path.is_file() and path.name not in APART):
        twin = other / file.relative_to(one)
        if layout.LOGS not in file.parts and twin.is_file() and checksums.of(file) != checksums.of(twin):
            difference = compare(file, twin)
            found.append(f"{file.relative_to(one)}: {difference.status}: {difference.detail}")
    return found


def _names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


def _settled(manifest: Path) -> Any:
    """Return what a manifest records that is the same in every run."""
    found = json.loads(manifest.read_text())
    return _common({name: found[name] for name in ("model", "contract", "golden", "variants", "status")})


def _common(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _common(item) for key, item in value.items() if key not in OWN}
    return [_common(item) for item in value] if isinstance(value, list) else value


def equal_bytes(one: Path, other: Path) -> int:
    """Return how many artifacts are byte-for-byte equal in both releases."""
    hashes = [
        [json.loads(file.read_text())["variants"][0]["artifact"]["sha256"] for file in sorted(o.rglob("manifest.json"))]
        for o in (one, other)
    ]
    return sum(a == b for a, b in zip(*hashes, strict=True))
