"""Checking and timing an existing bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support import goldens
from support.commands import NATIVE, Cli, republish

from exporter.bundle import layout
from exporter.bundle.layout import read_manifest
from exporter.core import environment
from exporter.core.errors import JobError
from exporter.core.progress import Listener
from exporter.core.records import Goal, VariantRecord
from exporter.core.timing_records import runs_for
from exporter.core.tuning_records import Choice, Tried
from exporter.evidence import golden
from exporter.runs import check_bundle, latency, session_checks
from exporter.workers.session.client import Session


class Heard(Listener):
    def __init__(self) -> None:
        self.records: list[VariantRecord] = []

    def done(self, record: VariantRecord) -> None:
        self.records.append(record)


def crashes() -> Session:
    raise JobError("the session was ended by SIGSEGV")


def test_a_variant_that_fails_in_one_language_is_reported_once(
    bundle: Path, lent_zygote: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported once all of its sessions have finished."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    openers = session_checks.openers

    def openers_of_both(*args: object) -> Iterator[tuple[str, session_checks.Opener]]:
        yield from openers(*args)  # type: ignore[arg-type]
        yield "native", crashes

    monkeypatch.setattr(session_checks, "openers", openers_of_both)
    heard = Heard()
    manifest = check_bundle.run(
        bundle, check_bundle.CheckOptions(threads=1, timeout=120, bench=True, time_budget=0.1), heard
    )
    assert [(r.name, r.status) for r in heard.records] == [(v.name, "failed") for v in manifest.variants]
    assert all("python" in r.timings for r in heard.records)


@pytest.mark.parametrize(
    ("there", "here", "target", "portable", "cause"),
    [
        ("exact", False, "onnx", False, "saturated"),
        ("exact", True, "onnx", False, "too-coarse"),
        ("saturating", False, "onnx", False, "too-coarse"),
        ("exact", False, "trace", False, "too-coarse"),
        ("exact", False, "onnx", True, "too-coarse"),
    ],
)
def test_int8_that_saturates_on_this_cpu_is_blamed_on_it(
    bundle: Path,
    lent_zygote: None,
    monkeypatch: pytest.MonkeyPatch,
    there: str,
    here: bool,
    target: str,
    portable: bool,
    cause: str,
) -> None:
    monkeypatch.setattr(environment, "adds_bytes_exactly", lambda: here)
    manifest = layout.read_manifest(bundle)
    (made,) = [row for row in manifest.variants if row.name == target]
    coarse = replace(made, name=f"{target}@int8", contract=replace(made.contract, precision="int8"), status="failed",
                     cause="too-coarse", reason="cosine 0.9", remedy="keep layers in float32")  # fmt: skip
    monkeypatch.setattr(session_checks, "conclude", lambda record, results: coarse)
    manifest = replace(
        manifest,
        variants=(made,),
        environment=manifest.environment | {"int8_sums": there},
        request=replace(manifest.request, portable=portable),
    )
    monkeypatch.setattr(layout, "read_manifest", lambda place: manifest)
    (row,) = check_bundle.run(bundle, check_bundle.CheckOptions(threads=1, timeout=120), Heard()).variants
    assert row.cause == cause
    assert ("--portable" in row.remedy) == (cause == "saturated")
    assert row.reason.endswith("cosine 0.9")


def test_what_is_already_so_is_no_advice(bundle: Path, cli: Cli) -> None:
    faster = Tried(Choice("threads", ("1",)), "advice", "", "python", 0.8, 0.75, 0.9)
    found = read_manifest(bundle)
    tuned = tuple(replace(one, tuning=(faster,)) if one.artifact else one for one in found.variants)
    republish(bundle, replace(found, variants=tuned))
    for threads in (1, 2):
        done = cli("check", bundle, "--threads", threads, "-q")
        assert done.code == 0, done.out + done.err
        assert ("faster if loaded with threads=1" in " ".join(done.out.split())) == (threads != 1)
        assert f", {threads} threads" in done.out


def test_timing_again_has_the_calls_that_the_goal_of_the_bundle_needs(
    bundle: Path, lent_zygote: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[latency.Budget] = []

    def measured(sessions: dict, points: object, budget: latency.Budget, progress: object) -> latency.Measured:
        asked.append(budget)
        return latency.Measured(next(iter(sessions)), {})

    monkeypatch.setattr(latency, "measure_artifacts", measured)
    republish(bundle, replace(read_manifest(bundle), goal=Goal(max_p99_ms=30.0)))
    check_bundle.run(bundle, check_bundle.CheckOptions(threads=1, timeout=120, bench=True), Listener())
    assert [budget.least_runs for budget in asked] == [runs_for(99)]


def test_a_bundle_of_an_earlier_release(bundle: Path, cli: Cli) -> None:
    """Its golden is a pickle, which is converted to safetensors for C++."""
    goldens.pickled(golden.read(bundle / layout.GOLDEN), bundle / layout.PICKLED_GOLDEN)
    (bundle / layout.GOLDEN).unlink()
    manifest = read_manifest(bundle)
    assert manifest.golden is not None
    file = layout.record(bundle / layout.PICKLED_GOLDEN)
    republish(bundle, replace(manifest, golden=replace(manifest.golden, file=file)))
    held = {path.name for path in bundle.iterdir()}
    done = cli("check", bundle, "--json", "-q")
    assert done.code == 0, done.out + done.err
    sessions = [session for row in json.loads(done.out)["variants"] for session in row["sessions"]]
    assert {session["status"] for session in sessions} == {"passed"}
    assert {session["session"] for session in sessions} == {"python", *(["native"] if NATIVE else [])}
    assert {path.name for path in bundle.iterdir()} == held


def test_an_artifact_with_another_contract_than_its_record_fails(
    bundle: Path, lent_zygote: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hashes are right, as after an error of exporter or of a plug-in, but reports would promise something else."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    manifest = read_manifest(bundle)

    def wider(record: VariantRecord) -> VariantRecord:
        assert record.contract is not None
        name, bounds = next(iter(record.contract.symbols.items()))
        symbols = record.contract.symbols | {name: replace(bounds, max=bounds.max + 1)}
        return replace(record, contract=replace(record.contract, symbols=symbols))

    changed = [wider(v) if v.name in ("trace", "onnx") else v for v in manifest.variants]
    republish(bundle, replace(manifest, variants=tuple(changed)))
    found = check_bundle.run(bundle, check_bundle.CheckOptions(threads=1, timeout=120), Listener())
    said = {v.name: (v.status, v.stage, v.reason) for v in found.variants}
    for name, file in (("trace", "trace.pt"), ("onnx", "model.onnx")):
        words = f"the contract inside {file} differs from the manifest's: symbols (python)"
        assert said[name] == ("failed", "load", words)
    assert [said[name][0] for name in ("script", "export")] == ["passed", "passed"]


@pytest.mark.parametrize(
    ("created", "said"),
    [
        ("2026-01-02T03:04:05+00:00", False),
        ("2026-01-02T03:14:05+00:00", True),
        ("2026-01-02T05:04:05+02:00", False),
        ("yesterday", False),
        ("0001-01-01T00:00:00+14:00", False),
    ],
)
def test_a_creation_time_in_the_future_is_a_warning(created: str, said: bool) -> None:
    found = check_bundle._ahead(created, datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert bool(found) == said
    assert all(created in one and "the time here is 2026-01-02T03:04:00" in one for one in found)


def test_check_repeats_the_warnings_of_the_export(bundle: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each warning appears once, and those about the export's own timing not at all."""
    monkeypatch.setattr(session_checks, "openers", lambda *_: [])
    monkeypatch.setattr(session_checks, "conclude", lambda record, sessions: record)
    found = read_manifest(bundle)
    warned = ("weights were drawn at random", "weights were drawn at random")
    first = replace(found.variants[0], notes=("height: multiples of 2",), untimed="there is no memory")
    untimed = {"batch=4": "no"}
    republish(bundle, replace(found, warnings=warned, untimed=untimed, variants=(first, *found.variants[1:])))
    text = " ".join(cli("check", bundle, "-q").out.split())
    assert text.count("warning: weights were drawn at random") == 1
    assert "trace: height: multiples of 2" in text
    assert "not timed" not in text
    assert "nothing was timed at" not in text


def test_check_warns_of_a_bundle_from_the_future(bundle: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_checks, "openers", lambda *_: [])
    monkeypatch.setattr(session_checks, "conclude", lambda record, sessions: record)
    republish(bundle, replace(read_manifest(bundle), created="2100-01-01T00:00:00+00:00"))
    done = cli("check", bundle, "-q")
    assert done.code == 0, done.err
    assert "warning: it was made at 2100-01-01T00:00:00+00:00, but the time here is" in " ".join(done.out.split())
    steps = json.loads((bundle / "provenance.json").read_text())["predicate"]["runDetails"]["metadata"]
    assert steps["finishedOn"] == steps["startedOn"], "a run cannot finish before it started"
