"""The integrity of a bundle: hashes, a bill of materials, provenance, signatures; any altered byte is detected."""

from __future__ import annotations

import base64
import dataclasses
import errno
import io
import json
import os
import subprocess
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from support.commands import Cli, Run, recipe_path, republish
from support.manifests import manifest, variant
from support.signatures import flip, write_keys

from exporter.bundle import checksums, integrity, provenance, sbom
from exporter.bundle.layout import UNLISTED, read_manifest
from exporter.bundle.publishing import stage
from exporter.bundle.signing import Trust
from exporter.core.errors import AlteredError, ArtifactError
from exporter.core.records import ModelRecord, VariantRecord
from exporter.model import recipes
from exporter.runs import session_checks

VALIDATOR = JsonStrictValidator(SchemaVersion.V1_7)
# Every file of the bundle `signed`; a test compares the list with the bundle.
FILES = (
    "SHA256SUMS", "bom.cdx.json", "exported.pt2", "golden.safetensors", "logs/export.log", "logs/onnx.log",
    "logs/prepare.log", "logs/script.log", "logs/trace.log", "manifest.json", "model.onnx", "provenance.dsse.json",
    "provenance.json",
    "script.pt", "trace.pt",
)  # fmt: skip
ARTIFACTS = {"exported.pt2", "model.onnx", "script.pt", "trace.pt"}


def files(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The artifacts that a check would load; the test does not load them."""
    names: list[str] = []

    def openers(zygote: object, place: Path, record: VariantRecord, *_: object) -> list[Any]:
        assert record.artifact is not None
        names.append(record.artifact.path)
        return []

    monkeypatch.setattr(session_checks, "openers", openers)
    monkeypatch.setattr(session_checks, "conclude", lambda record, sessions: record)
    return names


# One byte


def test_the_list_of_files_is_complete(signed: Path) -> None:
    assert files(signed) == set(FILES)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", FILES)
def test_one_byte_of_any_file(signed: Path, keys: tuple[Path, Path], name: str, share: float) -> None:
    flip(signed / name, share)
    found = integrity.examine(signed, Trust(keys[1]))
    assert name in {**found.problems, **found.spoilt} or any(name in said for said in found.problems.values())
    assert set(found.spoilt) == {name} & (ARTIFACTS | {"golden.safetensors"})
    if not found.spoilt:
        with pytest.raises(AlteredError, match=name):
            found.require(found.problems)


@pytest.mark.parametrize("name", FILES)
def test_check_reports_one_altered_byte(
    cli: Cli, signed: Path, keys: tuple[Path, Path], loaded: list[str], name: str
) -> None:
    flip(signed / name)
    done = cli("check", signed, "-q", "--json", "--threads", "1", "--public-key", keys[1])
    assert done.code == (2 if name == "golden.safetensors" else 1)
    if name not in ARTIFACTS:
        assert name in done.err
        assert loaded == []
        return
    assert set(loaded) == ARTIFACTS - {name}
    rows = {v["artifact"]["path"]: v for v in json.loads(done.out)["variants"]}
    assert {path for path, row in rows.items() if row["status"] == "failed"} == {name}
    assert rows[name]["stage"] == "hash"
    assert name in rows[name]["reason"]


def test_no_process_starts_for_an_altered_bundle(cli: Cli, signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.runs.check_bundle.Zygote", None)
    flip(signed / "logs" / "trace.log")
    assert cli("check", signed).code == 1


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda p: (p / "logs" / "onnx.log").unlink(), "logs/onnx.log is missing"),
        (lambda p: (p / "trace.pt").unlink(), "trace.pt is missing"),
        (lambda p: (p / "bom.cdx.json").unlink(), "bom.cdx.json is missing"),
        (lambda p: (p / "provenance.json").unlink(), "provenance.json is missing"),
        (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda p: (p / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
        (lambda p: (p / "SHA256SUMS").write_text("nonsense\n"), "line 1 of SHA256SUMS is broken"),
        (lambda p: (p / "extra.so").touch(), "extra.so is not in SHA256SUMS"),
        (lambda p: (p / "a\x1b[2J").touch(), r"'a\x1b[2J' is not in SHA256SUMS"),
        (lambda p: (p / "link").symlink_to(p / "trace.pt"), "link is not in SHA256SUMS"),
        (lambda p: swap_for_link(p / "logs" / "trace.log"), "logs/trace.log is not a file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_missing_and_additional_files(signed: Path, harm: Callable[[Path], object], said: str) -> None:
    harm(signed)
    found = integrity.examine(signed, None)
    assert said in "; ".join([*found.problems.values(), *found.spoilt.values()])


def swap_for_link(path: Path) -> None:
    moved = path.rename(path.parent.parent.parent / path.name)
    path.symlink_to(moved)


def reseal(place: Path) -> None:
    """Regenerate SHA256SUMS, as an attacker can."""
    (place / checksums.NAME).write_text(checksums.text(checksums.tree(place, {}, UNLISTED)))


def test_the_provenance_detects_a_file_swapped_together_with_its_hash(cli: Cli, signed: Path) -> None:
    flip(signed / "logs" / "trace.log")
    reseal(signed)
    done = cli("check", signed)
    assert done.code == 1
    assert "logs/trace.log does not match provenance.json" in done.err


def test_the_signature_detects_altered_statements(cli: Cli, signed: Path, keys: tuple[Path, Path]) -> None:
    flip(signed / "logs" / "trace.log")
    statement = json.loads((signed / "provenance.json").read_text())
    for subject in statement["subject"]:
        subject["digest"]["sha256"] = checksums.of(signed / subject["name"])
    (signed / "provenance.json").write_text(json.dumps(statement))
    reseal(signed)
    for words in ((), ("--public-key", keys[1])):
        done = cli("check", signed, *words)
        assert done.code == 1
        assert "provenance.dsse.json: it signs another provenance.json" in done.err
    (signed / "provenance.dsse.json").unlink()
    done = cli("check", signed, "--public-key", keys[1])
    assert done.code == 1
    assert "provenance.dsse.json is missing" in done.err


# What is written


def test_coreutils_verify_the_hashes(made_bundle: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made_bundle, capture_output=True)
    assert done.returncode == 0
    listed = checksums.read(made_bundle)
    assert listed is not None
    assert set(listed) == files(made_bundle) - {"SHA256SUMS"}


def test_the_bill_is_cyclonedx(made_bundle: Path) -> None:
    text = (made_bundle / "bom.cdx.json").read_text()
    assert VALIDATOR.validate_str(text) is None
    bill = json.loads(text)
    model = bill["metadata"]["component"]
    assert (model["type"], model["name"]) == ("machine-learning-model", "pair")
    found = {component["name"]: component for component in bill["components"]}
    assert found["torch"]["purl"].startswith("pkg:pypi/torch@")
    assert found["CUDA"]["type"] == "platform"
    assert found["trace.pt"]["hashes"] == [{"alg": "SHA-256", "content": checksums.of(made_bundle / "trace.pt")}]
    needs = {dependency["ref"]: dependency.get("dependsOn", []) for dependency in bill["dependencies"]}
    assert "package:torch" in needs["file:trace.pt"]


def test_the_bill_is_reproducible_and_describes_the_weights() -> None:
    model = ModelRecord(
        "bert", "hf:acme/bert", "pretrained", 0, 7, {}, "pkg:huggingface/acme/bert@0123456789abcdef", "apache-2.0"
    )
    record = dataclasses.replace(manifest(variant()), model=model)
    first = sbom.render(record, {"trace.pt": "0" * 64})
    assert first == sbom.render(record, {"trace.pt": "0" * 64})
    assert first != sbom.render(record, {"trace.pt": "1" * 64})
    assert VALIDATOR.validate_str(first) is None
    component = json.loads(first)["metadata"]["component"]
    assert component["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert component["purl"] == "pkg:huggingface/acme/bert@0123456789abcdef"


@pytest.mark.parametrize("origin", ["pkg:", "pkg:nonsense", "no URL at all", "https://example.org/w.pt", ""])
@pytest.mark.parametrize(
    "licence", ["", "ours, all rights reserved", "MIT OR Apache-2.0", "https://example.org/LICENSE"]
)
def test_any_origin_and_licence_of_the_weights(origin: str, licence: str) -> None:
    model = ModelRecord("net", "net.py:net", "pretrained", 0, origin=origin, licence=licence)
    bill = sbom.render(dataclasses.replace(manifest(), model=model), {})
    assert VALIDATOR.validate_str(bill) is None
    component = json.loads(bill)["metadata"]["component"]
    assert ("externalReferences" in component) == origin.startswith("https:")
    assert ("licenses" in component) == bool(licence)


@pytest.mark.parametrize(
    ("said", "licence"),
    [
        ({"License-Expression": "MIT", "License": "whatever"}, "MIT"),
        ({"License": "BSD", "Classifier": "License :: OSI Approved :: BSD License"}, "BSD"),
        ({"License": "Permission is\nhereby", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT License"),
        ({"Classifier": "Topic :: Scientific/Engineering"}, ""),
    ],
)
def test_the_licence_of_a_package(said: dict[str, str], licence: str) -> None:
    metadata = Message()
    for name, value in said.items():
        metadata[name] = value
    assert sbom._licence(metadata) == licence


def test_the_provenance_is_an_in_toto_statement(made_bundle: Path) -> None:
    statement = json.loads((made_bundle / "provenance.json").read_text())
    assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    names = {subject["name"] for subject in statement["subject"]}
    assert names == files(made_bundle) - {"SHA256SUMS", "provenance.json"}
    built = statement["predicate"]["buildDefinition"]
    assert built["externalParameters"]["command"] == "exporter ..."
    assert built["externalParameters"]["seed"] == 0
    recipe = next(d for d in built["resolvedDependencies"] if d["annotations"]["role"] == "recipe")
    assert recipe["digest"]["sha256"] == checksums.of(Path(recipe_path("tiny:pair").rpartition(":")[0]))
    assert statement["predicate"]["runDetails"]["builder"]["id"].startswith("pkg:generic/exporter@")


def test_sigstore_accepts_the_provenance(made_bundle: Path) -> None:
    from sigstore.dsse import Statement

    Statement((made_bundle / "provenance.json").read_bytes())


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *names, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_revision_of_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "net.py"
    recipe.write_text("net = 1")
    source = recipes.Source("file", str(recipe), "net")

    def revision() -> list[Any]:
        return [m for m in provenance.materials(source) if "gitCommit" in m["digest"]]

    assert revision() == [], "not a repository"
    git(tmp_path, "init", "-q")
    assert revision() == [], "a repository that does not track the recipe"
    git(tmp_path, "add", "net.py")
    git(tmp_path, "commit", "-q", "-m", "net")
    git(tmp_path, "tag", "v1")
    (found,) = revision()
    assert found["digest"]["gitCommit"] == git(tmp_path, "rev-parse", "HEAD")
    assert found["annotations"]["dirty"] is False
    recipe.write_text("net = 2")
    assert revision()[0]["annotations"]["dirty"] is True


def test_materials_of_other_sources(tmp_path: Path) -> None:
    saved, weights = tmp_path / "old.pt", tmp_path / "w.safetensors"
    saved.write_bytes(b"saved")
    weights.write_bytes(b"weights")
    found = provenance.materials(recipes.Source("source", "saved", str(saved), checkpoint=str(weights)))
    assert {m["name"]: m["annotations"]["role"] for m in found} == {"old.pt": "recipe", "w.safetensors": "checkpoint"}
    assert provenance.materials(recipes.Source("source", "torchvision", "resnet18")) == ()
    assert provenance.materials(recipes.Source("file", str(tmp_path / "none.py"), "net")) == ()
    (bert, *_) = provenance.materials(recipes.Source("name", "exporter_models.bert"))
    assert bert["name"] == "bert.py"


def test_files_that_changed_are_named(tmp_path: Path) -> None:
    recipe, inputs = tmp_path / "net.py", tmp_path / "x.safetensors"
    recipe.write_text("one")
    source = recipes.Source("file", str(recipe), "net", inputs_file=str(inputs))
    before, stamps = provenance.materials(source), provenance.stamps(source)
    assert provenance.stamps(source) == stamps
    inputs.write_bytes(b"made by the recipe")
    assert list(provenance.changed(before, provenance.materials(source))) == []
    recipe.write_text("two")
    os.utime(recipe, ns=(stamps[0][3], stamps[0][3]))
    assert provenance.stamps(source)[0] != stamps[0]
    assert list(provenance.changed(before, provenance.materials(source))) == ["net.py"]


def test_materials_cover_the_shards_of_a_checkpoint(tmp_path: Path) -> None:
    index = tmp_path / "net.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "1.safetensors", "d": "gone"}}')
    for name in ("1.safetensors", "2.safetensors"):
        (tmp_path / name).write_text(name)
    found = provenance.materials(recipes.Source("source", "timm", "net", checkpoint=str(index)))
    assert [m["name"] for m in found] == [index.name, "1.safetensors", "2.safetensors"]
    assert {m["annotations"]["role"] for m in found} == {"checkpoint"}
    assert found[1]["digest"]["sha256"] == checksums.of(tmp_path / "1.safetensors")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": 1, "b": 2.5, "c": "gone", "d": "\\u0000"}}',
        "[" * 10**5,
    ],
    ids=["cut", "a list", "empty", "a list of shards", "names of all kinds", "deep"],
)
def test_a_broken_index_has_no_shards(tmp_path: Path, text: str) -> None:
    """The code that loads it reports the error."""
    index = tmp_path / "net.safetensors.index.json"
    index.write_text(text)
    assert provenance.shards(index) == [index]


def test_a_failed_run_has_integrity_files_too(run: Run) -> None:
    record, place = run("broken:forward_raises")
    assert record.status == "failed"
    assert integrity.examine(place, Trust()).problems == {}
    assert VALIDATOR.validate_str((place / "bom.cdx.json").read_text()) is None


def test_a_bundle_of_an_earlier_release_is_checked_with_a_warning(cli: Cli, bundle: Path, loaded: list[str]) -> None:
    for name in ("SHA256SUMS", "bom.cdx.json", "provenance.json"):
        (bundle / name).unlink()
    done = cli("check", bundle, "-q", "--threads", "1")
    assert done.code == 0, done.err
    assert "no SHA256SUMS" in done.out
    assert set(loaded) == ARTIFACTS
    key, _ = write_keys(bundle.parent, ed25519.Ed25519PrivateKey.generate())
    assert cli("sign", bundle, "--key", key).code == 2


def test_an_altered_manifest_is_rejected(cli: Cli, bundle: Path) -> None:
    flip(bundle / "manifest.json")
    with pytest.raises(ArtifactError, match="does not match SHA256SUMS"):
        read_manifest(bundle)
    assert cli("report", bundle).code == 2


# Signatures


@pytest.mark.parametrize(
    "make",
    [
        ed25519.Ed25519PrivateKey.generate,
        lambda: ec.generate_private_key(ec.SECP256R1()),
        lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048),
    ],
    ids=["ed25519", "ecdsa", "rsa"],
)
def test_kinds_of_keys(cli: Cli, bundle: Path, tmp_path: Path, make: Callable[[], Any]) -> None:
    key, public = write_keys(tmp_path, make())
    done = cli("sign", bundle, "--key", key)
    assert (done.code, done.out.strip()) == (0, str(bundle / "provenance.dsse.json"))
    assert integrity.examine(bundle, Trust(public)).problems == {}
    assert cli("sign", bundle, "--key", key).code == 0, "again"


@pytest.mark.parametrize(
    "change", [{"name": ["net.py"]}, {"annotations": {"role": ["recipe"]}}, {"digest": {"sha256": 7}}]
)
def test_a_material_that_is_not_text(signed: Path, change: dict[str, Any]) -> None:
    found = json.loads((signed / "provenance.json").read_text())
    found["predicate"]["buildDefinition"]["resolvedDependencies"][0] |= change
    with pytest.raises(ArtifactError, match="is not text"):
        provenance.recorded(json.dumps(found).encode())


@pytest.mark.parametrize("name", ["provenance.dsse.json.new", "SHA256SUMS.new"])
def test_leftovers_of_a_killed_signing_are_ignored(cli: Cli, signed: Path, keys: tuple[Path, Path], name: str) -> None:
    left, other = signed / name, signed.parent / "other"
    left.write_text('{"payload": "')
    found = integrity.examine(signed, Trust(keys[1]))
    assert (found.problems, found.spoilt) == ({}, {})
    assert found.notes == (f"{left.name} is left over from an interrupted signing: remove it",)
    assert cli("pack", signed).code == 0
    assert cli("unpack", signed.with_name("pair.tar.zst"), "--out", other).code == 0
    assert files(other) == set(FILES), "it is not packed"
    assert cli("sign", signed, "--key", keys[0]).code == 0
    assert files(signed) == set(FILES)
    left.symlink_to(other / "trace.pt")
    before = (other / "trace.pt").read_bytes()
    assert cli("sign", signed, "--key", keys[0]).code == 0
    assert (files(signed), (other / "trace.pt").read_bytes()) == (set(FILES), before)


def test_a_signature_that_cannot_be_written(
    cli: Cli, signed: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (signed / "provenance.dsse.json").read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    done = cli("sign", signed, "--key", keys[0])
    assert done.code == 2
    assert "cannot write to " in done.err
    assert "the disk is full" in done.err
    assert (signed / "provenance.dsse.json").read_bytes() == before
    assert integrity.examine(signed, Trust(keys[1])).problems == {}


def test_a_signature_is_verified(
    cli: Cli, signed: Path, keys: tuple[Path, Path], loaded: list[str], tmp_path: Path
) -> None:
    done = cli("check", signed, "-q", "--json", "--threads", "1", "--public-key", keys[1])
    assert (done.code, json.loads(done.out)["warnings"]) == (0, [])
    done = cli("check", signed, "-q", "--json", "--threads", "1")
    assert done.code == 0
    assert "--public-key" in json.loads(done.out)["warnings"][0]
    _, other = write_keys(tmp_path, ed25519.Ed25519PrivateKey.generate())
    done = cli("check", signed, "--public-key", other)
    assert done.code == 1
    assert "was not signed by the key" in done.err
    assert "give the key or identity of its signer" in done.err
    assert "export again" not in done.err
    (signed / "trace.pt").write_bytes(b"altered")
    done = cli("check", signed, "--public-key", other)
    assert (done.code, "download it again, or export again" in done.err) == (1, True)


def test_a_missing_signature_has_a_remedy(cli: Cli, bundle: Path, keys: tuple[Path, Path]) -> None:
    done = cli("check", bundle, "--public-key", keys[1])
    assert (done.code, "it is not signed: provenance.dsse.json is missing" in done.err) == (1, True)
    assert "sign it with `exporter sign`" in done.err
    assert "export again" not in done.err


def test_an_encrypted_key(cli: Cli, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, public = write_keys(tmp_path, ed25519.Ed25519PrivateKey.generate(), b"open sesame")
    monkeypatch.setenv("EXPORTER_KEY_PASSWORD", "open barley")
    assert cli("sign", bundle, "--key", key).code == 2
    assert not (bundle / "provenance.dsse.json").exists()
    monkeypatch.setenv("EXPORTER_KEY_PASSWORD", "open sesame")
    assert cli("sign", bundle, "--key", key).code == 0
    assert integrity.examine(bundle, Trust(public)).problems == {}


def test_an_encrypted_key_without_a_terminal(
    cli: Cli, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = write_keys(tmp_path, ed25519.Ed25519PrivateKey.generate(), b"open sesame")
    monkeypatch.delenv("EXPORTER_KEY_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = cli("sign", bundle, "--key", key)
    assert done.code == 2
    assert "set EXPORTER_KEY_PASSWORD" in done.err
    assert not (bundle / "provenance.dsse.json").exists()


def test_invalid_keys(cli: Cli, signed: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nonsense")
    assert cli("sign", signed, "--key", tmp_path / "none.pem").code == 2
    assert cli("sign", signed, "--key", keys[1]).code == 2
    assert cli("check", signed, "--public-key", keys[0]).code == 2
    assert cli("check", signed, "--identity", "me@example.org").code == 2


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (x25519.X25519PrivateKey.generate, "it is neither Ed25519, ECDSA nor RSA"),
        (
            lambda: rsa.generate_private_key(public_exponent=65537, key_size=1024),
            "its 1024 bits are too few for RSA, which needs 2048",
        ),
    ],
    ids=["x25519", "short"],
)
def test_keys_that_must_not_sign(cli: Cli, bundle: Path, tmp_path: Path, make: Callable[[], Any], why: str) -> None:
    key, _ = write_keys(tmp_path, make())
    done = cli("sign", bundle, "--key", key)
    assert (done.code, f"{key} is not a usable private key: {why}" in done.err) == (2, True)
    assert not (bundle / "provenance.dsse.json").exists()


def test_a_signature_of_another_provenance_is_not_replaced(cli: Cli, signed: Path, keys: tuple[Path, Path]) -> None:
    """It proves that the bundle was altered, even if all other records were written anew."""
    held = (signed / "provenance.dsse.json").read_bytes()
    republish(signed, dataclasses.replace(read_manifest(signed), warnings=("another",)))
    (signed / "provenance.dsse.json").write_bytes(held)
    done = cli("sign", signed, "--key", keys[0])
    assert (done.code, "it signs another provenance.json" in " ".join(done.err.split())) == (1, True), done.err
    assert (signed / "provenance.dsse.json").read_bytes() == held


def test_an_altered_bundle_is_not_signed(cli: Cli, bundle: Path, keys: tuple[Path, Path]) -> None:
    flip(bundle / "trace.pt")
    done = cli("sign", bundle, "--key", keys[0])
    assert done.code == 1
    assert "trace.pt" in done.err
    assert not (bundle / "provenance.dsse.json").exists()


def test_sigstore_is_not_installed(cli: Cli, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sigstore", None)
    done = cli("sign", bundle)
    assert done.code == 2
    assert "exporter[sigstore]" in done.err


def test_sigstore_without_a_network(cli: Cli, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sigstore import errors, models

    def unreachable() -> None:
        raise errors.NetworkError

    monkeypatch.setattr(models.ClientTrustConfig, "production", unreachable)
    done = cli("sign", bundle)
    assert done.code == 1
    assert "--key" in done.err


def test_the_identity_of_sigstore(cli: Cli, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sigstore's verifier is mocked."""
    from sigstore import errors, models, verify

    payload = (bundle / "provenance.json").read_bytes()

    class Verifier:
        def verify_dsse(self, found: bytes, policy: Any) -> tuple[str, bytes]:
            if policy._identity != "me@example.org":
                raise errors.VerificationError("another identity")
            return "application/vnd.in-toto+json", payload

    def write(signed: bytes) -> None:
        envelope = {"payload": base64.b64encode(signed).decode()}
        (bundle / "provenance.sigstore.json").write_text(json.dumps({"dsseEnvelope": envelope}))

    monkeypatch.setattr(verify.Verifier, "production", Verifier)
    monkeypatch.setattr(models.Bundle, "from_json", lambda text: text)
    issuer = "https://accounts.example.org"
    trust = Trust(identity="me@example.org", issuer=issuer)
    assert "missing" in integrity.examine(bundle, trust).problems["provenance.sigstore.json"]
    write(payload)
    assert integrity.examine(bundle, trust).problems == {}
    assert "--identity" in integrity.examine(bundle, Trust()).notes[0]
    other = integrity.examine(bundle, Trust(identity="you@example.org", issuer=issuer))
    assert "not signed by you@example.org" in other.problems["provenance.sigstore.json"]
    write(b"{}")
    for asked in (trust, Trust()):
        assert "another provenance.json" in integrity.examine(bundle, asked).problems["provenance.sigstore.json"]
    (bundle / "provenance.sigstore.json").write_text("[]")
    assert "not a sigstore bundle" in integrity.examine(bundle, Trust()).problems["provenance.sigstore.json"]


def test_a_signed_bundle_is_replaced_as_a_whole(signed: Path) -> None:
    with stage(signed) as staging:
        record = dataclasses.replace(manifest(), golden=None)
        staging.write(record)
        integrity.seal(staging.root, record, ())
        staging.publish()
    assert integrity.examine(signed, Trust()).problems == {}
    assert files(signed) == {"SHA256SUMS", "bom.cdx.json", "manifest.json", "provenance.json"}


@pytest.mark.parametrize("sums", ["missing", "written anew"])
def test_a_report_shows_no_manifest_that_the_provenance_contradicts(cli: Cli, signed: Path, sums: str) -> None:
    file = signed / "manifest.json"
    assert cli("report", signed).code == 0
    file.write_text(file.read_text().replace('"', ' "', 1))
    if sums == "missing":
        (signed / "SHA256SUMS").unlink()
    else:
        listed = checksums.read(signed)
        lines = [f"{checksums.of_held(signed / one)}  {one}\n" for one in listed]
        (signed / "SHA256SUMS").write_text("".join(lines))
    done = cli("report", signed)
    assert (done.code, "manifest.json does not match provenance.json" in "".join(done.err.split("\n"))) == (2, True), (
        done.err
    )
