"""The files of a bundle, and whether they match their records."""

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
def test_pipes_and_links_do_not_block(tmp_path: Path, name: str) -> None:
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
    subprocess.run(["rm", "-r", tmp_path / "f"], check=True)  # shutil.rmtree recurses


def test_directories_without_a_valid_manifest(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a bundle"):
        layout.read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"model": ')
    with pytest.raises(ArtifactError, match=r"manifest\.json: not a valid Manifest") as raised:
        layout.read_manifest(tmp_path)
    assert "export again" in raised.value.remedy


def test_files_are_verified_against_their_records(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"0123456789")
    recorded = layout.record(path)
    assert recorded.bytes == 10
    layout.verify(tmp_path, recorded)
    path.write_bytes(b"012345678")
    with pytest.raises(ArtifactError, match="has 9 bytes, not the recorded 10"):
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
