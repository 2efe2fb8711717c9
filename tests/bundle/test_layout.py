"""What a bundle holds, and whether it is what was recorded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.archives import make_bundle

from exporter.bundle import checksums, layout
from exporter.core.errors import ArtifactError
from exporter.core.records import ArtifactRecord


@pytest.mark.parametrize("name", ["manifest.json", "SHA256SUMS"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    place = make_bundle(tmp_path / "toy")
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)
    with pytest.raises(ArtifactError, match=f"{name} is not a file"):
        layout.read_manifest(place)
    with pytest.raises(ArtifactError, match=f"{name} is not a file"):
        checksums.read_bounded(place / name)
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(ArtifactError, match="link is a link"):
        checksums.read_bounded(tmp_path / "link")
    with pytest.raises(ArtifactError, match="zero is not a file"):
        checksums.read_bounded(Path("/dev/zero"))


def test_folders_in_folders(tmp_path: Path) -> None:
    deep = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(1200):
            os.mkdir("f", dir_fd=deep)
            inner = os.open("f", os.O_RDONLY, dir_fd=deep)
            os.close(deep)
            deep = inner
    finally:
        os.close(deep)
    assert checksums.tree(tmp_path, {}, ()) == {}
    subprocess.run(["rm", "-r", tmp_path / "f"], check=True)  # Python's own way of it recurses


def test_no_bundle_to_read(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no bundle"):
        layout.read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"model": ')
    with pytest.raises(ArtifactError, match=r"manifest\.json: not a valid Manifest") as raised:
        layout.read_manifest(tmp_path)
    assert "export again" in raised.value.remedy


def test_what_was_recorded_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"0123456789")
    recorded = layout.record(path)
    assert recorded.bytes == 10
    layout.verify(tmp_path, recorded)
    path.write_bytes(b"012345678")
    with pytest.raises(ArtifactError, match="has 9 bytes, 10 were recorded"):
        layout.verify(tmp_path, recorded)
    path.write_bytes(b"012345678X")
    with pytest.raises(ArtifactError, match="SHA-256 differs"):
        layout.verify(tmp_path, recorded)
    path.unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        layout.verify(tmp_path, recorded)


@pytest.mark.parametrize("name", ["../a.pt", "/etc/hostname", "logs/a.log", ""])
def test_files_outside_of_the_bundle_are_not_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError):
        layout.verify(tmp_path, ArtifactRecord(name, 1, "0" * 64))
