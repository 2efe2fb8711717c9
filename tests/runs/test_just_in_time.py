"""Variants compiled just in time: modes, backends, and the cache that another process starts from."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Cli, Run, republish, request_for
from support.schema import VALIDATOR

from exporter import targets
from exporter.bundle import layout as bundles
from exporter.bundle import publishing
from exporter.bundle.layout import CACHE
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import UsageError
from exporter.core.records import ArtifactRecord, VariantRecord
from exporter.core.size_range import Range
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.runs import just_in_time, pipeline
from exporter.targets import Options, Variant
from exporter.targets.compile import BACKENDS, MODES
from exporter.workers.children import Zygote


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only Python sessions, and turn off inductor options that only help larger models."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"}


def test_a_second_process_starts_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles nothing: its cache directory starts with the cache alone and ends with the same files."""
    left: dict[str, set[str]] = {}
    remove = bundles.remove

    def look_and_remove(folder: Path) -> None:
        left[folder.name] = files(folder / just_in_time.CACHE)
        remove(folder)

    monkeypatch.setattr(bundles, "remove", look_and_remove)
    request = request_for("tiny:mlp", tmp_path / "toy", "compile:default", bench=True, time_budget=0.1)
    manifest, place = pipeline.run(request)
    VALIDATOR.validate(json.loads((place / "manifest.json").read_text()))
    row = manifest.variants[1]
    assert (row.status, row.artifact) == ("passed", None), row.reason
    (cache,) = row.companions
    bundles.verify(place, cache)
    assert cache.path == f"compile-default{CACHE}"
    with zipfile.ZipFile(place / cache.path) as archive:
        held = set(archive.namelist())
    assert any(name.endswith(".so") for name in held)
    assert any(name.startswith("fxgraph/") for name in held)
    assert left["compile-default-cached"] == held
    assert row.lifecycle.first_call_ms is not None
    assert row.lifecycle.cached_call_ms is not None
    assert manifest.variants[0].lifecycle.cached_call_ms is None


def test_a_wrong_cache_fails_the_variant(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs of the process that started from the cache are judged too."""
    from exporter.workers.session.client import Session

    closed: list[str] = []
    check = Session.check

    def check_twice(session: Session) -> list[dict[str, Any]]:
        cases = check(session)
        if session.name.startswith("compile") and len(closed) == 0:
            closed.append(session.name)
        elif session.name.startswith("compile"):
            cases[0] |= {"error": "other values", "outputs": []}
        return cases

    monkeypatch.setattr(Session, "check", check_twice)
    monkeypatch.setattr(just_in_time, "pack_cache", lambda folder, path: path.write_bytes(b"PK\5\6" + bytes(18)) > 0)
    manifest, _ = run("tiny:mlp", "compile:eager", bench=True, time_budget=0.1)
    row = manifest.variants[1]
    assert row.status == "failed"
    assert "from its cache: " in row.reason
    assert "other values" in row.reason


def test_backends_that_leave_no_cache(run: Run) -> None:
    manifest, place = run("tiny:mlp", "compile:eager,compile:aot_eager,compile:backend=eager")
    assert [(v.status, v.companions) for v in manifest.variants] == [("passed", ())] * 3
    assert not list(place.glob(f"*{CACHE}"))


def test_graph_breaks_are_reported_and_fail_with_fullgraph(run: Run, tmp_path: Path) -> None:
    manifest, _ = run("broken:branch_on_data", "compile:eager", out=tmp_path / "broken")
    (row,) = manifest.variants
    assert row.status == "passed"
    assert "graph break" in " ".join(row.notes)
    manifest, _ = run("broken:branch_on_data", "compile:eager", out=tmp_path / "whole", fullgraph=True)
    (row,) = manifest.variants
    assert row.status == "failed"
    assert "Data-dependent branching" in row.reason
    assert "broken.py:" in row.reason
    assert "torch.cond" in row.remedy
    assert "--fullgraph" in row.reproduce
    manifest, _ = run("tiny:mlp", "compile:eager", out=tmp_path / "plain", fullgraph=True)
    assert manifest.variants[0].status == "passed"


def test_fullgraph_needs_a_variant_compiled_just_in_time(run: Run) -> None:
    with pytest.raises(UsageError, match="just in time"):
        run("tiny:mlp", "trace,compile", fullgraph=True)


def test_an_unknown_backend_fails_its_own_variant(run: Run) -> None:
    manifest, _ = run("tiny:mlp", "compile:backend=nobodys")
    (row,) = manifest.variants
    assert (row.status, row.stage) == ("failed", "load")
    assert "no backend 'nobodys'" in row.reason
    assert "aot_eager, cudagraphs, eager, inductor" in row.remedy


def test_modes_and_backends_are_known_to_torch() -> None:
    assert set(MODES) <= set(torch._inductor.list_mode_options())
    assert set(BACKENDS) <= set(torch._dynamo.list_backends(exclude_tags=()))


def test_settings_are_parsed() -> None:
    found = targets.parse("compile:aot_eager,compile:backend=my.own-one@bf16")
    assert found == [Variant("compile", "aot_eager"), Variant("compile", "backend=my.own-one", "bf16")]
    assert all(map(targets.is_live, found))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("compile:defualt", "did you mean compile:default"),
        ("compile:max-autotune-no-cudagraph", "did you mean compile:max-autotune-no-cudagraphs"),
        ("compile:tvm", "compile:backend=NAME"),
        ("compile:backend=", "compile:backend=NAME"),
        ("compile:backend=../up", "compile:backend=NAME"),
        ("trace:backend=eager", "it has trace"),
    ],
)
def test_unknown_settings_are_refused(text: str, remedy: str) -> None:
    with pytest.raises(UsageError, match="has no variant") as raised:
        targets.parse(text)
    assert remedy in raised.value.remedy


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of inputs of each graph that a backend called `counting` compiled."""
    from torch._dynamo.backends import registry

    found: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(len(inputs))
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setitem(registry._BACKENDS, "counting", None)
    monkeypatch.setitem(registry._COMPILER_FNS, "counting", counting)
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        yield found
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("bounds", "expected"), [(Range(1, 64), 1), (Range(4, 4), 4), (Range(2, 7, (2, 4, 5, 7)), 4)], ids=str
)
def test_sizes_that_the_contract_leaves_open_are_dynamic_from_the_first_call(
    compiles: list[int], bounds: Range, expected: int
) -> None:
    spec = TensorSpec("x", "float32", ("batch", 4))
    contract = Contract("relu", (spec,), (dataclasses.replace(spec, name="y"),), {"batch": bounds})
    model, example = torch.nn.ReLU(), (torch.ones(4, 4),)
    module = FlatModule(model, flatten_inputs(model, example)).eval()
    program = Program(contract, "cpu", lambda: module, lambda: example, Path("none"))
    run = targets.live("compile").live(program, Options(variant="backend=counting")).run
    for size in (4, 2, 5, 7):
        x = torch.randn(size, 4)
        assert torch.equal(run((x,))[0], x.relu())
    assert len(compiles) == expected


def test_a_zygote_does_not_import_the_compiler(tmp_path: Path) -> None:
    """Timed sessions are forked from a process that has imported torch, but not its compiler."""
    with Zygote() as zygote:
        modules = zygote.run("modules", "support.jobs:modules", {}, tmp_path / "log", 60)
    assert [name for name in modules if name.startswith(("torch._dynamo", "torch._inductor"))] == []


def test_a_cache_is_packed_into_one_file(tmp_path: Path) -> None:
    """Empty files are included, because they record attempts; locks and Triton's part, which has paths, are not."""
    folder, path = tmp_path / "cache", tmp_path / f"one{CACHE}"
    for name in ("ab/code.so", "ab/code.so.load_ok", "locks/a.lock", "triton/0/kernel.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name * name.endswith(".so"))
    assert just_in_time.pack_cache(folder, path)
    just_in_time.unpack_cache(path, tmp_path / "other")
    assert files(tmp_path / "other") == {"ab/code.so", "ab/code.so.load_ok"}
    assert (tmp_path / "other" / "ab" / "code.so").read_text() == "ab/code.so"
    assert not just_in_time.pack_cache(folder / "locks", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_check_finds_an_altered_cache(cli: Cli, bundle: Path) -> None:
    path = bundle / f"compile-default{CACHE}"
    path.write_bytes(b"what torch left")
    live = VariantRecord("compile:default", "compile", "passed", "done", companions=(bundles.record(path),))
    manifest = bundles.read_manifest(bundle)
    trace = next(v for v in manifest.variants if v.name == "trace")
    republish(bundle, dataclasses.replace(manifest, variants=(trace, live)))
    done = cli("check", bundle, "-q")
    assert done.code == 0, done.out
    assert "compile:default" not in done.out, "only its hash can be checked"
    path.write_bytes(b"what torch lost")
    done = cli("check", bundle, "--json", "-q")
    assert done.code == 1
    row = {v["name"]: v for v in json.loads(done.out)["variants"]}["compile:default"]
    assert (row["status"], row["stage"]) == ("failed", "hash")


def test_a_bundle_with_only_a_cache_can_be_replaced(tmp_path: Path) -> None:
    """This holds even if the manifest is broken."""
    out = tmp_path / "toy"
    out.mkdir()
    (out / "manifest.json").write_text("{")
    (out / f"compile-default@bf16{CACHE}").write_bytes(b"")
    with publishing.stage(out):
        pass


def test_a_cache_is_not_recommended_as_an_artifact() -> None:
    from support.manifests import EAGER, manifest, timing, variant

    from exporter.report import summary

    cache = ArtifactRecord(f"compile-default{CACHE}", 5, "0" * 64)
    live = variant("compile:default", artifact=None, companions=(cache,), timings={"python": timing(1.0)})
    assert [c.variant.name for c in summary.choices(manifest(EAGER, live, variant("trace")))] == ["trace"]


def test_a_cache_file_older_than_1980_is_packed(tmp_path: Path) -> None:
    """Zip archives cannot store times before 1980."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "kernel.cpp").write_text("one")
    os.utime(folder / "kernel.cpp", (0, 0))
    assert just_in_time.pack_cache(folder, tmp_path / "toy.cache.zip")
    just_in_time.unpack_cache(tmp_path / "toy.cache.zip", tmp_path / "again")
    assert (tmp_path / "again" / "kernel.cpp").read_text() == "one"
