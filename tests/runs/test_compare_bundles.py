"""`exporter compare`: whether a new bundle can replace an old one."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.manifests import CONTRACT, manifest, timing, variant

from exporter.bundle import layout as bundles
from exporter.core.errors import ArtifactError, JobError
from exporter.core.json_codec import to_json
from exporter.core.progress import Listener
from exporter.core.records import ArtifactRecord, Manifest
from exporter.core.size_range import Range
from exporter.report import comparison
from exporter.runs import compare_bundles

NO_GATES = compare_bundles.Limits()
QUICK = compare_bundles.TimingOptions(time_budget=0.1, threads=1, timeout=60.0)


def made(place: Path, record: Manifest) -> Path:
    """Write a bundle with this manifest and the files that it lists."""
    place.mkdir()
    variants = []
    for one in record.variants:
        if one.artifact is not None:
            (place / one.artifact.path).write_bytes(b"0" * one.artifact.bytes)
            one = dataclasses.replace(one, artifact=bundles.record(place / one.artifact.path))
        variants.append(one)
    (place / "manifest.json").write_text(
        to_json(dataclasses.replace(record, golden=None, samples=None, variants=tuple(variants)))
    )
    return place


def shipped(name: str = "trace", size: int = 1000, **changes: Any) -> Any:
    return variant(name, artifact=ArtifactRecord(f"{name}.pt", size, ""), **changes)


def compared(
    folder: Path, old: Manifest, new: Manifest, gates: compare_bundles.Limits = NO_GATES
) -> compare_bundles.Comparison:
    places = made(folder / "old", old), made(folder / "new", new)
    return compare_bundles.run(places, gates, None, Listener())


def test_a_bundle_can_replace_itself(tmp_path: Path) -> None:
    found = compared(tmp_path, manifest(shipped()), manifest(shipped()))
    assert found.broken == ()
    text = comparison.render(found, "table")
    assert "The new bundle can replace the old one." in text
    assert "--measure times both bundles side by side" in text


def test_missing_added_and_failing_variants_are_named(tmp_path: Path) -> None:
    failed = shipped("onnx", status="failed")
    old = manifest(shipped(), shipped("onnx"), shipped("script"))
    found = compared(tmp_path, old, manifest(shipped(), failed, shipped("compile")))
    assert found.broken == ("script is missing", "onnx passed in the old bundle and fails in the new one")
    assert found.added == ("compile",)


@pytest.mark.parametrize("status", ["passed", "failed"])
@pytest.mark.parametrize("form", ["table", "md"])
def test_bundles_without_a_common_variant_cannot_be_compared(tmp_path: Path, status: str, form: str) -> None:
    old = manifest(shipped(status=status), shipped("script", status=status))
    found = compared(tmp_path, old, manifest(shipped("onnx")))
    assert found.broken == ("they have no variant in common: the old bundle has trace, script, and the new one onnx",)
    text = comparison.render(found, form)
    assert "cannot replace the old one: they have no variant in common" in " ".join(text.split())
    assert "latency" not in text, "an empty table"


@pytest.mark.parametrize("variants", [(), (shipped(status="failed"),)])
def test_a_bundle_without_a_passing_variant_cannot_replace_another(tmp_path: Path, variants: tuple[Any, ...]) -> None:
    found = compared(tmp_path, manifest(*variants), manifest(*variants))
    assert found.broken == ("no artifact in the new bundle passed",)
    assert "cannot replace the old one" in comparison.render(found, "table")


def test_a_narrower_contract_fails_unless_breaking_changes_are_allowed(tmp_path: Path) -> None:
    narrow = dataclasses.replace(CONTRACT, symbols={name: Range(2, 2) for name in CONTRACT.symbols})
    places = made(tmp_path / "old", manifest(shipped())), made(tmp_path / "new", manifest(shipped(contract=narrow)))
    assert "is batch (2 to 2)" in compare_bundles.run(places, NO_GATES, None, Listener()).broken[0]
    assert compare_bundles.run(places, compare_bundles.Limits(allow_breaking=True), None, Listener()).broken == ()


@pytest.mark.parametrize(("size", "breaks"), [(1100, False), (1101, True)])
def test_the_size_limit(tmp_path: Path, size: int, breaks: bool) -> None:
    found = compared(tmp_path, manifest(shipped()), manifest(shipped(size=size)), compare_bundles.Limits(max_larger=10))
    assert bool(found.broken) == breaks


def test_the_latency_limit_applies_to_the_lower_end_of_the_interval() -> None:
    def broken(low: float) -> list[str]:
        pair = compare_bundles.Pair(
            "trace", (), ("exact", "exact"), (1, 1), {"python": compare_bundles.Latency(1, 1.2, 1.2, (low, 1.3))}
        )
        return compare_bundles._broken(
            compare_bundles.Comparison("old", "new", (pair,), (), ()), compare_bundles.Limits(max_slower=5)
        )

    assert broken(1.04) == []
    assert broken(1.06) == ["trace (python) is 20.0% slower; the limit is 5%"]


def test_a_busy_machine_puts_the_latency_limit_in_doubt() -> None:
    latency = {"python": compare_bundles.Latency(1, 9, 9.0, (1.79, 30))}
    pair = compare_bundles.Pair("trace", (), ("exact", "exact"), (1, 1), latency, busy="it was busy")
    comparison = compare_bundles.Comparison("old", "new", (pair,), (), ())
    (reason,) = compare_bundles._broken(comparison, compare_bundles.Limits(max_slower=20))
    assert reason.startswith("trace (python) seems to be 800.0% slower; the limit is 20%, but it was busy: compare")


def test_a_comparison_waits_for_a_quiet_machine(bundle: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def wait(limit_s: float, progress: Callable[[str], None]) -> str:
        waited.append(limit_s)
        progress("wait: load")
        return ""

    monkeypatch.setattr(compare_bundles.machine_load, "wait", wait)
    done = cli("compare", bundle, bundle, "--measure", "--time-budget", 0.1, "--wait-quiet", 7)
    assert (done.code, set(waited), "wait: load" in done.err) == (0, {7}, True)


def test_an_altered_artifact_is_refused(tmp_path: Path) -> None:
    places = made(tmp_path / "old", manifest(shipped())), made(tmp_path / "new", manifest(shipped()))
    (places[1] / "trace.pt").write_bytes(b"1" * 1000)
    with pytest.raises(ArtifactError, match=r"trace\.pt"):
        compare_bundles.run(places, NO_GATES, None, Listener())


def test_an_altered_golden_is_refused(bundle: Path, tmp_path: Path, cli: Any) -> None:
    altered = shutil.copytree(bundle, tmp_path / "altered")
    data = bytearray((altered / "golden.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (altered / "golden.safetensors").write_bytes(data)
    done = cli("compare", bundle, altered)
    assert done.code == 1
    assert "golden.safetensors" in done.err


@pytest.mark.parametrize(
    ("side", "max_slower", "broken"),
    [("new", None, True), ("new", 5.0, True), ("old", None, False), ("old", 5.0, True)],
)
def test_a_variant_that_fails_here_does_not_meet_the_latency_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, max_slower: float | None, broken: bool
) -> None:
    def check(kind: str, opener: Any, *_: Any) -> tuple[SimpleNamespace, Any]:
        session = opener()
        status = "failed" if session.name == side else "passed"
        return SimpleNamespace(status=status, reason="no such CPU"), session

    def openers(_: Any, place: Path, *rest: Any) -> list[tuple[str, Any]]:
        return [("python", lambda: SimpleNamespace(name=place.name, close=lambda: None))]

    monkeypatch.setattr(compare_bundles.session_checks, "check", check)
    monkeypatch.setattr(compare_bundles.session_checks, "openers", openers)
    places = made(tmp_path / "old", manifest(shipped())), made(tmp_path / "new", manifest(shipped()))
    found = compare_bundles.run(
        places,
        compare_bundles.Limits(max_slower),
        QUICK,
        Listener(),
    )
    assert found.pairs[0].note == f"the {side} variant fails here: no such CPU"
    assert found.broken == ((f"trace: the {side} variant fails here: no such CPU",) if broken else ())


@pytest.mark.parametrize("dies", ["old", "new"])
def test_a_session_that_crashes_during_timing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    def measure(subjects: Any, budget: float, baseline: str) -> dict[str, Any]:
        if dies == baseline:
            raise JobError("it was ended by SIGSEGV")
        return {
            side: SimpleNamespace(error=JobError("it was ended by SIGSEGV") if side == dies else None)
            for side in subjects
        }

    session = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(
        compare_bundles.session_checks, "check", lambda *_: (SimpleNamespace(status="passed", reason=""), session)
    )
    monkeypatch.setattr(compare_bundles.session_checks, "openers", lambda *_: [("python", None)])
    monkeypatch.setattr(compare_bundles.benchmark, "measure", measure)
    places = made(tmp_path / "old", manifest(shipped())), made(tmp_path / "new", manifest(shipped()))
    found = compare_bundles.run(
        places,
        compare_bundles.Limits(5.0),
        QUICK,
        Listener(),
    )
    assert found.broken == (f"trace: the {dies} variant fails here: it was ended by SIGSEGV",)


def test_recorded_zeros_do_not_divide(tmp_path: Path) -> None:
    empty = manifest(shipped(size=0, timings={"python": dataclasses.replace(timing(5.0), median_ms=0.0)}))
    found = compared(tmp_path, empty, manifest(shipped(size=5)), compare_bundles.Limits(max_larger=10))
    assert found.pairs[0].latency == {}
    assert found.broken == ("trace is 400.0% larger; the limit is 10%",)


@pytest.mark.parametrize("form", ["table", "md"])
def test_the_report_names_each_change(tmp_path: Path, form: str) -> None:
    wide = dataclasses.replace(CONTRACT, precision="bf16")
    new = manifest(shipped(size=2000, contract=wide, timings={"python": timing(4.0)}))
    text = comparison.render(compared(tmp_path, manifest(shipped()), new), form)
    for words in ("compatible", "1 kB → 2 kB", "5.00 → 4.00 ms", "0.80x", "it computes in bf16"):
        assert words in text


def test_json_contains_the_whole_comparison(tmp_path: Path) -> None:
    found = compared(tmp_path, manifest(shipped()), manifest(shipped()))
    assert json.loads(comparison.render(found, "json"))["pairs"][0]["name"] == "trace"


def test_measuring_both_bundles_on_this_machine(bundle: Path, cli: Any) -> None:
    done = cli(
        "compare", bundle, bundle, "--measure", "--time-budget", 0.1, "--max-slower", 400, "--format", "json", "-q"
    )
    assert done.code == 0, done.err
    for pair in json.loads(done.out)["pairs"]:
        for latency in pair["latency"].values():
            low, high = latency["ratio_ci95"]
            assert 0 < low <= latency["ratio"] <= high


def test_max_slower_requires_measure(bundle: Path, cli: Any) -> None:
    done = cli("compare", bundle, bundle, "--max-slower", 5)
    assert done.code == 2
    assert "add --measure" in done.err
