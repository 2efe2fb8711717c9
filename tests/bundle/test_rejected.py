"""Artifacts that failed the check: moved to a folder that is not shipped, with the reason."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from support.commands import Run
from support.manifests import failed, manifest, variant
from support.schema import VALIDATOR

import exporter
from exporter import deploy, report
from exporter.bundle import archive, checksums, integrity, layout
from exporter.bundle.signing import Trust
from exporter.core.errors import AlteredError, UsageError
from exporter.core.progress import Listener
from exporter.core.records import ArtifactRecord, Manifest
from exporter.runs import bisect_variant, check_bundle, compare_bundles
from exporter.workers.bisect import Asked, Bisection


@pytest.fixture
def made(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Manifest, Path]:
    """A model with a loop over the batch, which is correct as TorchScript and wrong as a trace."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    return run("broken:batch_is_baked", "trace,script", out=tmp_path / "toy")


def test_an_artifact_that_fails_parity_is_moved(made: tuple[Manifest, Path], tmp_path: Path) -> None:
    found, place = made
    trace, script = found.variants
    assert (trace.status, trace.artifact, script.status) == ("failed", None, "passed"), trace
    assert trace.parity is not None
    assert trace.parity.verdict == "FAIL"
    assert not (place / "trace.pt").exists()
    assert [file.path for file in trace.rejected] == ["rejected/trace.pt"]
    assert trace.rejected[0].sha256 == checksums.of(place / "rejected" / "trace.pt")
    assert trace.reason in (place / "rejected" / "REASONS.txt").read_text()
    assert layout.read_manifest(place) == found
    VALIDATOR.validate(json.loads((place / "manifest.json").read_text()))
    assert not [name for name in checksums.read(place) or {} if "rejected" in name or name == "trace.pt"]
    for name in ("bom.cdx.json", "provenance.json"):
        assert "trace.pt" not in (place / name).read_text()
    assert integrity.examine(place, Trust()).problems == {}


def test_a_rejected_artifact_is_not_shipped(made: tuple[Manifest, Path], tmp_path: Path) -> None:
    """It is in no packed bundle, no deployment and no check; it can be opened only by its path, without records."""
    found, place = made
    archive.pack(place, tmp_path / "packed")
    archive.unpack(tmp_path / "packed", tmp_path / "unpacked", 1 << 24)
    assert not [path for path in (tmp_path / "unpacked").rglob("*") if path.name == "trace.pt"]
    shutil.rmtree(place / "rejected")
    assert integrity.whole(place) == found, "it is not required"
    with pytest.raises(UsageError, match="trace failed"):
        deploy.choose(found, "trace", lambda _: "")
    again = check_bundle.run(place, check_bundle.CheckOptions(threads=1, timeout=120), Listener())
    assert [(v.name, v.status) for v in again.variants] == [("script", "passed")]
    assert any("trace is not checked: its export failed" in warning for warning in again.warnings)


def test_a_rejected_artifact_is_not_opened_if_a_record_is_required(made: tuple[Manifest, Path]) -> None:
    path = made[1] / "rejected" / "trace.pt"
    assert exporter.open_artifact(path).contract.target == "trace"
    with pytest.raises(AlteredError, match="no record beside it"):
        exporter.open_artifact(path, verify="required")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """Return the artifacts that `exporter bisect` passes to the process that loads them; none is loaded."""
    found: list[Path | None] = []

    def note(job: object, asked: Asked, *_: object) -> Bisection:
        found.append(asked.artifact)
        return Bisection(asked.variant, asked.target, "", "rounding", "it was not looked at", passes=True)

    monkeypatch.setattr("exporter.workers.bisect.run", note)
    return found


def test_bisect_verifies_a_rejected_artifact_before_it_is_loaded(
    made: tuple[Manifest, Path], loaded: list[Path | None], tmp_path: Path
) -> None:
    """Only the manifest has its hash."""
    place = made[1]
    artifact = place / "rejected" / "trace.pt"
    content = artifact.read_bytes()

    def bisect() -> Bisection:
        assert not integrity.examine(place, Trust()).problems
        return bisect_variant.run(place, "trace", tmp_path / "found", lambda _: None, 60)

    bisect()
    assert loaded == [artifact]
    artifact.write_bytes(content + b"x")
    with pytest.raises(AlteredError, match=r"rejected/trace\.pt does not match manifest\.json"):
        bisect()
    artifact.unlink()
    with pytest.raises(UsageError, match=r"rejected/trace\.pt is missing, and packed bundles leave out"):
        bisect()
    (tmp_path / "elsewhere").write_bytes(content)
    artifact.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AlteredError, match=r"rejected/trace\.pt is not a file"):
        bisect()
    assert len(loaded) == 1


def test_a_bundle_with_rejected_artifacts_is_replaced(made: tuple[Manifest, Path], run: Run) -> None:
    _, place = run("tiny:mlp", "script", out=made[1])
    assert place == made[1]
    assert not (place / "rejected").exists()


def test_a_link_called_rejected(made: tuple[Manifest, Path], tmp_path: Path) -> None:
    place = made[1]
    (place / "rejected").rename(tmp_path / "elsewhere")
    (place / "rejected").symlink_to(tmp_path / "elsewhere")
    assert "rejected" in integrity.examine(place, None).problems
    with pytest.raises(AlteredError):
        archive.pack(place, tmp_path / "packed")


REJECTED = failed(stage="check", rejected=(ArtifactRecord("rejected/script.pt", 9, "0" * 64),))


@pytest.mark.parametrize("form", ["table", "md", "html"])
def test_the_report_names_the_rejected_file(form: str, tmp_path: Path) -> None:
    assert "rejected/script.pt" in report.render(manifest(variant(), REJECTED), form, tmp_path)


def test_compare_reports_a_rejected_variant_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = variant("script")
    new = dataclasses.replace(REJECTED, contract=old.contract)
    sides = iter((manifest(old), manifest(new, variant())))
    monkeypatch.setattr(integrity, "whole", lambda _: next(sides))
    found = compare_bundles.run((Path("old"), Path("new")), compare_bundles.Limits(), None, Listener())
    assert found.broken == ("script passed in the old bundle and fails in the new one",)


def test_an_artifact_that_was_not_checked_is_not_moved(tmp_path: Path) -> None:
    """Its row says that it was not checked, and how to check it."""
    from exporter.bundle.publishing import Staging

    row = failed(artifact=ArtifactRecord("trace.pt", 9, "0" * 64))
    assert Staging(tmp_path / "out", tmp_path).reject(row) == row
