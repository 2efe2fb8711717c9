"""Every `exporter deploy` command verifies every file of the bundle against every record of it, as `check` does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from support.commands import Cli
from support.signatures import write_keys

COMMANDS = {
    "cpp": ("--out", "out"),
    "docker": ("--out", "out"),
    "triton": ("--repository", "out"),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_replaced_artifact_with_a_new_manifest_is_refused(cli: Cli, bundle: Path, tmp_path: Path, kind: str) -> None:
    """Only the bill of materials and the provenance still say what was exported."""
    (bundle / "trace.pt").write_bytes((bundle / "script.pt").read_bytes())
    digest = hashlib.sha256((bundle / "trace.pt").read_bytes()).hexdigest()
    manifest = json.loads((bundle / "manifest.json").read_text())
    for variant in manifest["variants"]:
        if variant["artifact"] and variant["artifact"]["path"] == "trace.pt":
            variant["artifact"] |= {"sha256": digest, "bytes": (bundle / "trace.pt").stat().st_size}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    lines = [line.split("  ", 1)[1] for line in (bundle / "SHA256SUMS").read_text().splitlines()]
    sums = [f"{hashlib.sha256((bundle / name).read_bytes()).hexdigest()}  {name}\n" for name in lines]
    (bundle / "SHA256SUMS").write_text("".join(sums))
    option, out = COMMANDS[kind]
    done = cli("deploy", kind, bundle, "--variant", "trace", option, tmp_path / out)
    assert done.code == 1, done.out
    assert "trace.pt does not match bom.cdx.json" in " ".join(done.err.split())
    assert not (tmp_path / out).exists()


def test_a_signature_can_be_required(cli: Cli, bundle: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("own", "other")]
    for folder in folders:
        folder.mkdir()
    (own, _), (_, other) = (write_keys(folder, ed25519.Ed25519PrivateKey.generate()) for folder in folders)
    assert cli("sign", bundle, "--key", own).code == 0
    done = cli("deploy", "cpp", bundle, "--variant", "trace", "--out", tmp_path / "out", "--public-key", other)
    assert done.code == 1
    assert "provenance.dsse.json: " in done.err
    assert not (tmp_path / "out").exists()
