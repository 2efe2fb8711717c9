"""Records beside an artifact: every one that exists is read, and any mismatch rejects the artifact."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from support.signatures import flip, write_keys

import exporter
from exporter.bundle import adjacent_records, checksums
from exporter.core.errors import AlteredError, ArtifactError, UsageError

RECORDS = ("SHA256SUMS", "manifest.json", "bom.cdx.json", "provenance.json")


def keep(place: Path, *names: str) -> None:
    """Remove all integrity files of the bundle except these."""
    for name in {*RECORDS, "provenance.dsse.json"} - {*names}:
        (place / name).unlink(missing_ok=True)


def test_an_artifact_in_a_bundle_and_one_without_records(bundle: Path, tmp_path: Path) -> None:
    found = adjacent_records.vouch(bundle / "trace.pt")
    assert found == adjacent_records.Vouched(bundle.resolve() / "trace.pt", "trace")
    assert adjacent_records.vouch(bundle / "trace.pt", "required") == found
    (tmp_path / "alone").mkdir()
    alone = Path(shutil.copy(bundle / "trace.pt", tmp_path / "alone" / "any name.pt"))
    assert adjacent_records.vouch(alone) == adjacent_records.Vouched(alone)
    with pytest.raises(AlteredError, match="has no record beside it"):
        adjacent_records.vouch(alone, "required")


@pytest.mark.parametrize("record", RECORDS)
def test_any_single_record_rejects_an_altered_artifact(bundle: Path, record: str) -> None:
    keep(bundle, record)
    assert adjacent_records.vouch(bundle / "trace.pt", "required").path == bundle / "trace.pt"
    flip(bundle / "trace.pt")
    with pytest.raises(AlteredError, match=rf"trace\.pt does not match {record}: the SHA-256 differs"):
        exporter.open_artifact(bundle / "trace.pt")


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("name", ["best.pt", "golden.pt.bak"])
def test_a_name_that_a_record_does_not_list(bundle: Path, record: str, name: str) -> None:
    keep(bundle, record)
    shutil.copy(bundle / "trace.pt", bundle / name)
    with pytest.raises(AlteredError, match=rf"{name} is not among the files that {record}") as raised:
        exporter.open_artifact(bundle / name)
    assert "a folder of its own" in raised.value.remedy


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("what", ["folder", "pipe", "link", "dangling link", "noise", "empty"])
def test_an_invalid_record(bundle: Path, tmp_path: Path, record: str, what: str) -> None:
    keep(bundle, record)
    file = (bundle / record).rename(tmp_path / "elsewhere")
    spoil: dict[str, Callable[[], object]] = {
        "folder": lambda: (bundle / record).mkdir(),
        "pipe": lambda: os.mkfifo(bundle / record),
        "link": lambda: (bundle / record).symlink_to(file),
        "dangling link": lambda: (bundle / record).symlink_to("nowhere"),
        "noise": lambda: (bundle / record).write_text('{"name": "a page of the web"}'),
        "empty": lambda: (bundle / record).touch(),
    }
    spoil[what]()
    with pytest.raises(AlteredError, match=record):
        exporter.open_artifact(bundle / "trace.pt")


@pytest.mark.parametrize("record", RECORDS[1:])
def test_records_that_contradict_each_other(bundle: Path, record: str) -> None:
    text = (bundle / record).read_bytes()
    (bundle / record).write_bytes(text.replace(b'": ', b'":  ', 1))
    with pytest.raises(AlteredError, match=rf"{record}.*does not match"):
        adjacent_records.vouch(bundle / "trace.pt")


def test_links(bundle: Path, tmp_path: Path) -> None:
    """A link such as `current.pt`, or a folder `current`, is verified like its target."""
    places = tmp_path / "served"
    places.mkdir()
    (places / "current.pt").symlink_to(os.path.relpath(bundle / "trace.pt", places))
    (places / "newest.pt").symlink_to("current.pt")
    (places / "current").symlink_to(bundle)
    for link in (places / "current.pt", places / "newest.pt", places / "current" / "trace.pt"):
        assert adjacent_records.vouch(link, "required") == adjacent_records.Vouched(
            bundle.resolve() / "trace.pt", "trace"
        )
    (bundle / "inside.pt").symlink_to("trace.pt")
    assert adjacent_records.vouch(bundle / "inside.pt", "required").path.name == "trace.pt"
    assert exporter.open_artifact(places / "current.pt").contract.target == "trace"
    flip(bundle / "trace.pt")
    for link in (places / "current.pt", places / "newest.pt", places / "current" / "trace.pt"):
        with pytest.raises(AlteredError, match="SHA-256 differs"):
            exporter.open_artifact(link)


def test_links_out_of_a_bundle(bundle: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.pt"
    (bundle / "script.pt").rename(evil)
    (bundle / "script.pt").symlink_to(evil)
    (bundle / "more.pt").symlink_to(evil)
    assert adjacent_records.vouch(bundle / "script.pt").path == evil, "it matches the records"
    flip(evil)
    with pytest.raises(AlteredError, match="SHA-256 differs"):
        adjacent_records.vouch(bundle / "script.pt")
    with pytest.raises(AlteredError, match=r"more\.pt is not among the files"):
        adjacent_records.vouch(bundle / "more.pt")


def test_paths_that_are_not_readable_files(tmp_path: Path) -> None:
    (tmp_path / "a.pt").symlink_to("b.pt")
    (tmp_path / "b.pt").symlink_to("a.pt")
    (tmp_path / "nowhere.pt").symlink_to("missing.pt")
    (tmp_path / "folder.pt").mkdir()
    os.mkfifo(tmp_path / "pipe.pt")
    for name in ("a.pt", "nowhere.pt", "missing.pt", "folder.pt", "pipe.pt", "a.pt/x.pt", "none/x.pt"):
        with pytest.raises(ArtifactError):
            exporter.open_artifact(tmp_path / name)


def test_weights_beside_a_model(bundle: Path) -> None:
    """`model.onnx.data` is verified with `model.onnx`."""
    (bundle / "model.onnx.data").write_bytes(b"weights")
    listed = (checksums.read(bundle) or {}) | {"model.onnx.data": checksums.of(bundle / "model.onnx.data")}
    keep(bundle)
    (bundle / checksums.NAME).write_text(checksums.text(listed))
    adjacent_records.vouch(bundle / "model.onnx")
    (bundle / "model.onnx.data").write_bytes(b"Weights")
    with pytest.raises(AlteredError, match=r"model\.onnx\.data does not match"):
        adjacent_records.vouch(bundle / "model.onnx")
    (bundle / "model.onnx.data").unlink()
    with pytest.raises(AlteredError, match=r"model\.onnx\.data is missing"):
        adjacent_records.vouch(bundle / "model.onnx")
    adjacent_records.vouch(bundle / "trace.pt")


def test_required_signatures(signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    _, other = write_keys(tmp_path, ed25519.Ed25519PrivateKey.generate())
    trace = signed / "trace.pt"
    assert exporter.open_artifact(trace, verify="signed", public_key=str(keys[1])).contract.target == "trace"
    with pytest.raises(AlteredError, match="not signed by the key"):
        adjacent_records.vouch(trace, "signed", other)
    keep(signed, "provenance.json", "provenance.dsse.json")
    assert adjacent_records.vouch(trace, "signed", keys[1]).path == trace
    flip(trace)
    with pytest.raises(AlteredError, match=r"does not match provenance\.json"):
        adjacent_records.vouch(trace, "signed", keys[1])
    flip(trace)
    (signed / "provenance.dsse.json").unlink()
    with pytest.raises(AlteredError, match="not signed") as raised:
        adjacent_records.vouch(trace, "signed", keys[1])
    assert raised.value.remedy.startswith("sign it with `exporter sign`")
    (signed / "provenance.json").unlink()
    with pytest.raises(AlteredError, match="not signed"):
        adjacent_records.vouch(trace, "signed", keys[1])
    assert adjacent_records.vouch(trace).path == trace


def test_a_signature_of_another_payload(signed: Path) -> None:
    envelope = json.loads((signed / "provenance.dsse.json").read_text())
    (signed / "provenance.dsse.json").write_text(json.dumps({**envelope, "payload": "e30="}))
    with pytest.raises(AlteredError, match=r"provenance\.dsse\.json"):
        adjacent_records.vouch(signed / "trace.pt")
    keep(signed, "provenance.dsse.json")
    with pytest.raises(AlteredError, match=r"provenance\.json cannot be read"):
        adjacent_records.vouch(signed / "trace.pt")


def test_contradictory_requests(signed: Path, keys: tuple[Path, Path]) -> None:
    for verify, key in (("signed", None), ("required", keys[1]), ("if-present", keys[1]), ("never", None)):
        with pytest.raises(UsageError):
            adjacent_records.vouch(signed / "trace.pt", verify, key)  # type: ignore[arg-type]
