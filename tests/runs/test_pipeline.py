"""Whole runs: a variant that fails, in whatever way, gets its row, and the others still finish."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime.quantization
import pytest
import torch
from support.commands import Run, recipe_path, request_for, start_cli
from support.processes import children, gone, wait_for
from support.schema import fits_the_schema, rows

from exporter import targets
from exporter.bundle import archive, integrity, publishing
from exporter.bundle import layout as bundles
from exporter.core import environment, filesystem
from exporter.core.errors import BundleError, JobError, RecipeError, UsageError
from exporter.core.progress import Listener
from exporter.core.records import SessionRecord, VariantRecord
from exporter.evidence import golden
from exporter.model.torchscript import debug_info
from exporter.runs import pipeline
from exporter.runs.manifest_writer import Draft
from exporter.targets import _int8_onnx
from exporter.workers.children import BACKGROUND, Zygote


@pytest.fixture(autouse=True)
def _without_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use only Python sessions, so that these tests do the same everywhere."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")


def test_every_variant_passes(run: Run, tmp_path: Path) -> None:
    manifest, place = run("tiny:mlp", "export,trace", out=tmp_path / "toy", seed=3, sizes={"batch": 4})
    assert [v.name for v in manifest.variants] == ["export", "trace"], "in the requested order"
    assert {v.status for v in manifest.variants} == {"passed"}
    assert manifest.status == "complete"
    assert manifest == fits_the_schema(place)
    assert manifest.model.sizes == {"batch": 4}
    held = {entry.name for entry in place.iterdir()}
    proofs = {"SHA256SUMS", "bom.cdx.json", "provenance.json"}
    assert held == {"manifest.json", "golden.safetensors", "trace.pt", "exported.pt2", "logs", *proofs}
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy"], "no other directory is left"


def test_latency_is_measured(run: Run) -> None:
    manifest, place = run("tiny:mlp", "trace", bench=True, time_budget=0.3)
    eager, trace = manifest.variants
    assert (eager.name, eager.artifact) == ("eager", None)
    assert trace.timings["python"].speedup is not None
    assert trace.lifecycle.export_s is not None
    assert trace.lifecycle.first_call_ms is not None
    samples = json.loads((place / "samples.json").read_text())
    assert set(samples) == {"eager python", "trace python"}
    assert_sampled(samples["trace python"], trace.timings["python"].runs)
    fits_the_schema(place)


def assert_sampled(windows: list[list[float]], runs: int) -> None:
    """Assert that every window is there: all of one length, evenly thinned to at most 1000 samples."""
    of_a_window, rest = divmod(runs, len(windows))
    step = -(-of_a_window // 1000)
    assert rest == 0
    assert {len(window) for window in windows} == {len(range(0, of_a_window, step))}


def test_a_sweep_is_checked_and_timed(run: Run) -> None:
    manifest, place = run("tiny:mlp", "trace", bench=True, time_budget=0.2, sizes={"batch": 2}, sweep={"batch": (2, 8)})
    eager, trace = manifest.variants
    assert manifest.points == {"batch=2": {"batch": 2}, "batch=8": {"batch": 8}}
    assert manifest.golden is not None
    assert "batch=8" in map(str, manifest.golden.cases)
    for record in (eager, trace):
        assert record.sweep.keys() == {"batch=8"}
        assert record.sweep["batch=8"].keys() == record.timings.keys() == {"python"}
    assert "--size batch=2,8 " in trace.reproduce
    samples = json.loads((place / "samples.json").read_text())
    assert_sampled(samples["trace python at batch=8"], trace.sweep["batch=8"]["python"].runs)
    fits_the_schema(place)


@pytest.mark.parametrize(
    ("name", "stage", "reason"),
    [
        ("trace_raises", "export", "not to be traced"),
        ("trace_segfaults", "export", "export to trace was ended by SIGSEGV"),
        ("trace_aborts", "export", "export to trace was ended by SIGABRT"),
        ("trace_hangs", "export", "took longer than 20 s and was stopped"),
        ("batch_is_baked", "check", "batch is fixed at 2"),
    ],
)
def test_a_failing_variant_does_not_stop_the_others(run: Run, name: str, stage: str, reason: str) -> None:
    manifest, place = run(f"broken:{name}", "trace,export", timeout=20.0 if "hangs" in name else 120.0)
    bad, good = rows(manifest)["trace"], rows(manifest)["export"]
    assert (bad.status, bad.stage) == ("failed", stage)
    assert reason in bad.reason
    assert bad.reproduce.startswith("exporter export ")
    assert recipe_path(f"broken:{name}") in bad.reproduce
    assert (place / bad.log).is_file()
    assert good.status == "passed" or name == "batch_is_baked"
    assert manifest.status == "complete"
    fits_the_schema(place)


def test_a_model_that_torch_export_rejects_can_still_be_traced(run: Run) -> None:
    manifest, _ = run("broken:branch_on_data", "trace,export,onnx")
    found = rows(manifest)
    assert "torch.export" in found["export"].reason
    assert "torch.export" in found["onnx"].reason
    assert found["trace"].stage in ("done", "check")


def test_exceeding_the_memory_limit_fails_only_that_variant(run: Run) -> None:
    manifest, _ = run("broken:trace_eats_memory", "trace,export", memory_limit_gb=3.0)
    found = rows(manifest)
    assert (found["trace"].status, found["trace"].stage) == ("failed", "export")
    assert "can't allocate memory" in found["trace"].reason
    assert found["export"].status == "passed"


def test_a_model_that_returns_nan_does_not_pass(run: Run) -> None:
    manifest, _ = run("broken:gives_nan", "trace,export")
    for row in manifest.variants:
        assert row.status == "failed"
        assert "eager itself returns NaN" in row.reason


def test_no_temporary_files_are_left(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    run("broken:trace_segfaults", "trace,export", out=tmp_path / "out" / "toy")
    assert not list(scratch.iterdir())
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["toy"]


def cut_off(writing: Callable[[], object], folder: Path, patched: pytest.MonkeyPatch, *at: Any) -> dict[str, bytes]:
    """Stop `writing` in a function, the attribute `at[1]` of `at[0]`; return what a kill there leaves in the folder."""
    left: dict[str, bytes] = {}

    def stop(*given: Any, **_: Any) -> None:
        if len(given) > 1:  # a model, and the path to write it to
            Path(given[1]).write_bytes(b"half")
        left.update({file.name: file.read_bytes() for file in folder.iterdir()})
        raise KeyboardInterrupt

    with patched.context() as patch:
        patch.setattr(*at, stop)
        with pytest.raises(KeyboardInterrupt):
            writing()
    return left


def test_what_a_killed_export_leaves_is_not_published(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's archive, and onnxruntime's model in int8, are written beside the artifact and then read."""
    (tmp_path / "made").mkdir()
    trace, quantized = tmp_path / "made" / "trace.pt", tmp_path / "made" / "model@int8.onnx"
    scripted = torch.jit.script(torch.nn.ReLU())
    left = {
        "trace": cut_off(
            lambda: debug_info.save(scripted, trace, {}), trace.parent, monkeypatch, torch._C, "PyTorchFileReader"
        )
    }
    assert left["trace"]
    assert not list(trace.parent.iterdir()), "what a failed export leaves is removed at once"
    floats = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", floats[:1], floats[1:])
    onnx.save(onnx.helper.make_model(graph), quantized)
    left["onnx@int8"] = cut_off(
        lambda: _int8_onnx.quantize(quantized, ["x"], list),
        quantized.parent,
        monkeypatch,
        onnxruntime.quantization,
        "quantize_dynamic",
    )
    assert len(left["onnx@int8"]) == 2
    assert list(quantized.parent.iterdir()) == [quantized]
    from_child = Zygote.run

    def killed(self: Zygote, name: str, task: str, arguments: dict[str, Any], *rest: Any) -> Any:
        if (variant := name.removeprefix("export to ")) in left:
            for file, content in left[variant].items():
                (arguments["path"].parent / file).write_bytes(content)
            raise JobError("the process was ended by SIGKILL")
        return from_child(self, name, task, arguments, *rest)

    monkeypatch.setattr(Zygote, "run", killed)
    for _ in range(2):  # the second one replaces the first one
        manifest, place = run("tiny:mlp", "trace,onnx@int8,export", out=tmp_path / "toy")
        assert [row.status for row in manifest.variants] == ["failed", "failed", "passed"]
        assert place == tmp_path / "toy"
        archive.pack(place, tmp_path / "toy.tar.zst")


def test_a_crash_of_torch_export_does_not_stop_the_others(run: Run) -> None:
    manifest, place = run("broken:capture_segfaults", "trace,export")
    found = rows(manifest)
    assert found["trace"].status == "passed"
    assert (found["export"].status, found["export"].stage) == ("failed", "export")
    assert "SIGSEGV" in found["export"].reason
    assert "model" in found["export"].reason.partition("last output: ")[2], "the last line of its output"
    fits_the_schema(place)


@pytest.mark.parametrize(
    ("name", "values", "left_out"),
    [
        ("nan_segfaults", ["zeros", "ones", "negative", "large", "tiny"], "NaN and infinity"),
        ("zeros_segfault", [], "zeros, ones, negative, large and tiny numbers, padded masks, NaN and infinity"),
    ],
)
def test_a_model_that_crashes_at_unusual_values(run: Run, name: str, values: list[str], left_out: str) -> None:
    manifest, place = run(f"broken:{name}", "trace", sizes={"batch": 2})
    assert {v.status for v in manifest.variants} == {"passed"}
    said = f"the model crashes (SIGSEGV) at unusual values, so these were not checked: {left_out}"
    assert said in manifest.warnings
    assert manifest.golden is not None
    assert len({case.name for case in manifest.golden.cases}) > 1
    assert [case.values for case in manifest.golden.cases if case.values] == values
    assert not golden.read(place / "golden.safetensors").nonfinite
    fits_the_schema(place)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("forward_raises", "forward does not work"),
        ("forward_segfaults", "was ended by SIGSEGV"),
        ("forward_hangs", "took longer than 2 s"),
        ("output_of_nothing", "output holds no tensor"),
        ("output_without_tensors", "the model's output answer is of type str"),
    ],
)
def test_a_model_that_does_not_run_fails_every_variant(run: Run, name: str, reason: str) -> None:
    manifest, place = run(f"broken:{name}", "trace", timeout=2.0 if "hangs" in name else 60.0)
    (row,) = manifest.variants
    assert (row.status, row.stage) == ("failed", "prepare")
    assert reason in row.reason
    assert (place / row.log).is_file()
    fits_the_schema(place)


def test_reasons_name_files_by_their_paths_in_the_bundle(tmp_path: Path) -> None:
    """The staging folder, and the link by which jobs access it, do not exist when a user reads them."""
    with publishing.stage(tmp_path / "toy") as staging:
        draft = Draft(request_for("tiny:mlp", tmp_path / "toy"), staging, tmp_path / "link")
        session = SessionRecord("python", "failed", "load", f"cannot load {staging.root}/model@bf16.onnx: no kernel")
        reason = f"no kernel for Gemm: cannot load {tmp_path}/link/model@bf16.onnx"
        kept = draft.keep(VariantRecord("trace", "trace", "failed", "load", reason, sessions=(session,)))
        assert kept.reason == "no kernel for Gemm: cannot load model@bf16.onnx"
        assert kept.sessions[0].reason == "cannot load model@bf16.onnx: no kernel"
        assert draft.manifest.variants == (kept,)


def test_a_model_that_does_not_run_keeps_the_last_good_bundle(run: Run, tmp_path: Path) -> None:
    _, good = run("tiny:mlp", out=tmp_path / "toy")
    before = (good / "trace.pt").read_bytes()
    _, place = run("broken:forward_raises", out=tmp_path / "toy")
    assert place == tmp_path / "toy.failed"
    assert (good / "trace.pt").read_bytes() == before
    _, place = run("broken:forward_raises", out=tmp_path / "toy", replace=True)
    assert place == tmp_path / "toy.failed", "no artifact passed, so replace=True does not matter"


def test_a_run_that_loses_a_variant_keeps_the_last_good_bundle(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant may be lost because its export was killed or because it was not requested; replace=True allows both."""
    out = tmp_path / "toy"
    run("tiny:mlp", "trace,export", out=out)
    before = (out / "manifest.json").read_bytes()
    from_child = Zygote.run

    def killed(self: Zygote, name: str, *rest: Any) -> Any:
        if name == "export to trace":
            raise JobError("the process was ended by SIGKILL")
        return from_child(self, name, *rest)

    monkeypatch.setattr(Zygote, "run", killed)
    manifest, place = run("tiny:mlp", "trace,export", out=out)
    assert place == tmp_path / "toy.failed"
    assert {v.name: v.status for v in manifest.variants} == {"trace": "failed", "export": "passed"}
    assert bundles.read_manifest(place) == manifest
    assert (out / "manifest.json").read_bytes() == before
    assert (out / "trace.pt").is_file()
    _, place = run("tiny:mlp", "trace,script", out=out)
    assert place == tmp_path / "toy.failed", "script passes, but trace and export would be lost"
    _, place = run("tiny:mlp", "export", out=out)
    assert place == out, "all requested variants pass"
    _, place = run("tiny:mlp", "trace,export", out=out)
    assert place == out, "trace failed, but the old bundle did not have it"
    _, place = run("tiny:mlp", "trace,script", out=out)
    assert place == tmp_path / "toy.failed"
    manifest, place = run("tiny:mlp", "trace,script", out=out, replace=True)
    assert place == out
    assert bundles.read_manifest(out) == manifest


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("load_fails", "loading the model fails: OSError: the weights are gone"),
        ("load_gives_a_string", "model is of type str"),
        ("inputs_without_tensors", "contain no tensor"),
        ("inputs_fail", "inputs.. fails at batch=1: RuntimeError: no data today"),
        ("inputs_without_default", "without an integer default"),
        ("no_inputs", r"has no inputs\(\)"),
        ("sizes_name_a_stranger", "sizes names sequence"),
        ("sizes_upside_down", "range 8 to 2"),
        ("size_that_nothing_follows", "no input dimension depends on batch"),
        ("sizes_only_in_a_product", r"no input dimension tells past: input dim 0 depends on sizes in a way that no"),
        ("sizes_only_in_a_sum", r"no input dimension tells past from the other sizes in past\+seq"),
    ],
)
def test_broken_recipes_are_recipe_errors(run: Run, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as raised:
        run(f"broken:{name}", out=tmp_path / "toy")
    assert raised.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sizes", [{"batch": 9}, {"sequence": 3}])
def test_invalid_sizes_are_refused(run: Run, tmp_path: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"batch is 9, which is outside its range, 1 to 8|inputs.. takes no sequence"):
        run("tiny:mlp", out=tmp_path / "toy", sizes=sizes)
    assert list(tmp_path.iterdir()) == []


def test_a_user_defined_tolerance(run: Run) -> None:
    manifest, _ = run("tiny:mlp", rtol=0.5, atol=0.25)
    assert manifest.golden
    assert (manifest.golden.tolerance.rtol, manifest.golden.tolerance.atol) == (0.5, 0.25)


class Interrupting(Listener):
    """Press Ctrl-C when a variant reaches a stage."""

    def __init__(self, variant: str, stage: str) -> None:
        self.at = variant, stage

    def stage(self, variant: str, stage: str) -> None:
        if (variant, stage) == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_keeps_finished_variants(lent_zygote: None, tmp_path: Path) -> None:
    """Its exports are kept, but a variant that was not checked has not passed."""
    out = tmp_path / "toy"
    request = request_for("tiny:mlp", out, "trace,export", bench=True, time_budget=0.3)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(request, Interrupting("export", "check"))
    manifest = fits_the_schema(out)
    assert manifest.status == "interrupted"
    found = rows(manifest)
    assert found["trace"].status == "passed"
    assert (found["export"].status, found["export"].parity) == ("failed", None)
    assert "before its outputs were checked" in found["export"].reason
    assert found["export"].failure == "was not checked"
    assert (out / "exported.pt2").is_file()


def test_a_file_that_cannot_be_read_is_named_and_what_is_finished_is_kept(
    lent_zygote: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, recipe = tmp_path / "toy", tmp_path / "net.py"

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error", str(recipe))

    monkeypatch.setattr("exporter.runs.pipeline._Run._time", refuse)
    with pytest.raises(UsageError, match=rf"cannot access {recipe}: Input/output error") as raised:
        pipeline.run(request_for("tiny:mlp", out, "trace", bench=True, time_budget=0.3))
    assert not isinstance(raised.value, BundleError)
    assert raised.value.__notes__ == [f"finished variants are in {out}"]
    assert rows(fits_the_schema(out))["trace"].status == "passed"


class Leaving(Listener):
    """Leave a file in a directory when a variant is done."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def done(self, record: VariantRecord) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.touch()


def test_a_file_that_appears_during_a_run_costs_nothing(lent_zygote: None, tmp_path: Path) -> None:
    out = tmp_path / "toy"
    with pytest.raises(BundleError, match=r"the new bundle is in .*toy\.failed") as raised:
        pipeline.run(request_for("tiny:mlp", out, "trace"), Leaving(out / "thesis.tex"))
    assert getattr(raised.value, "__notes__", []) == []
    manifest = fits_the_schema(tmp_path / "toy.failed")
    assert (manifest.status, rows(manifest)["trace"].status) == ("complete", "passed")
    assert [file.name for file in out.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("owner", "name", "ending"),
    [(publishing.Staging, "reject", ".interrupted"), (integrity, "seal", ".interrupted"), (publishing, "swap", "")],
)
def test_a_run_interrupted_at_its_end_is_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, ending: str
) -> None:
    """The interrupt comes at the end of a step: failed files have been moved, the bundle is sealed or published."""
    out, act, calls = tmp_path / "toy", getattr(owner, name), [1]
    run("tiny:mlp", out=out)

    def interrupted(*given: object) -> object:
        found = act(*given)
        if name != "reject" or given[1].status == "failed":  # type: ignore[attr-defined]
            while calls:
                raise KeyboardInterrupt(calls.pop())
        return found

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        run("broken:batch_is_baked", "trace,script", out=out, replace=True)
    place = tmp_path / f"toy{ending}"
    assert raised.value.__notes__ == [f"finished variants are in {place}"]
    found = rows(fits_the_schema(place))
    assert (found["trace"].status, found["script"].status) == ("failed", "passed")
    assert (place / found["trace"].rejected[0].path).is_file()
    assert integrity.whole(place)
    assert bundles.read_manifest(out).model.name == ("batch_is_baked" if not ending else "mlp")


def test_an_interrupted_export_is_not_recorded_as_failed(lent_zygote: None, tmp_path: Path) -> None:
    out = tmp_path / "toy"
    request = request_for("broken:trace_hangs", out, "trace")
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(request, Interrupting("trace", "export"))
    assert list(tmp_path.iterdir()) == [], "no variant was finished, so none is kept"


def test_a_disk_error_is_reported_and_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(filesystem, "write_atomic", full)
    with pytest.raises(BundleError, match="the disk is full"):
        run("tiny:mlp", out=tmp_path / "toy")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_run_and_keeps_the_last_good_bundle(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, good = run("tiny:mlp", out=tmp_path / "toy")
    before = (good / "manifest.json").read_bytes()
    probes: list[Path] = []

    def full(root: Path) -> None:
        probes.append(root)
        if len(probes) > 1:  # the first comes before the run
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(filesystem, "probe_space", full)
    with pytest.raises(BundleError, match="the disk is full"):
        run("broken:trace_raises", out=tmp_path / "toy")
    assert (good / "manifest.json").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy"]


def test_without_eager_nothing_is_timed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise JobError("eager was ended by SIGSEGV")

    monkeypatch.setattr("exporter.runs.just_in_time.PythonSession", broken)
    with pytest.raises(JobError, match="eager cannot be timed"):
        run("tiny:mlp", "trace", bench=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_stopped_run_ends_its_children(bundle: Path, number: signal.Signals) -> None:
    """The last good bundle does not change. The process that drives the run does not import torch, so it is small."""
    before = (bundle / "manifest.json").read_bytes()
    words = ["export", recipe_path("broken:trace_hangs"), "--targets", "trace", "--no-bench", "--out", bundle]
    usual = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and a child process inherits that
    try:
        process = start_cli(*words)
    finally:
        signal.signal(signal.SIGHUP, usual)
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)  # otherwise a failure here would wait for the model that hangs
        wait_for(lambda: (bundle.parent / f".{bundle.name}.staging" / "logs" / "trace.log").exists())
        if number == signal.SIGINT:
            second = start_cli(*words)
            _, said = second.communicate(timeout=60)
            assert second.returncode == 2
            assert f"in use by another run (process {process.pid})" in said
            assert "Traceback" not in said
        family = children(process.pid)
        assert len(family) >= 3, "zygote, supervisor, job"
        peak = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in line)
        assert int(peak.split()[1]) < 150_000
        process.send_signal(number)
        if number == signal.SIGHUP:  # as a terminal that closes, which may send it twice
            os.kill(family[0], number)
            process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if number != signal.SIGKILL else -9)
    assert "Traceback" not in said
    wait_for(lambda: all(map(gone, family)))
    assert (bundle / "manifest.json").read_bytes() == before
    if number != signal.SIGKILL:
        assert [entry.name for entry in bundle.parent.iterdir()] == [bundle.name]


def test_slots_do_not_exceed_the_work(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.runs.pipeline.Zygote", lambda *_: zygote.lend())
    monkeypatch.setattr(environment, "usable_cpus", lambda: 64)
    manifest, _ = pipeline.run(request_for("tiny:mlp", tmp_path / "toy"))
    assert manifest.variants[0].status == "passed"


def test_the_costliest_export_and_timed_sessions_have_normal_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent exports wait passively, all but the costliest at low priority; timed sessions run as usual."""
    monkeypatch.delenv("OMP_WAIT_POLICY")
    usual = f"niceness {os.getpriority(os.PRIO_PROCESS, 0)}, waits as usual"
    request = request_for("tiny:told", tmp_path / "toy", "trace,script", bench=True, time_budget=0.1)
    manifest, place = pipeline.run(request)
    assert [v.status for v in manifest.variants] == ["passed"] * 3
    logs = {name: (place / "logs" / f"{name}.log").read_text().splitlines() for name in ("trace", "script", "eager")}
    assert f"niceness {BACKGROUND}, waits PASSIVE" in logs["trace"]
    assert usual.replace("as usual", "PASSIVE") in logs["script"]
    assert usual in logs["eager"]


@pytest.mark.parametrize("driver", [False, True])
def test_what_exports_need_is_preloaded_without_a_gpu(
    driver: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costliest export's first. With a driver, importing inductor would start a thread of CUDA."""
    started: list[tuple[str, ...]] = []

    def start(environment: dict[str, str], modules: tuple[str, ...] = (), later: tuple[str, ...] = ()) -> Zygote:
        started.append(later)
        raise JobError("not started")

    monkeypatch.setattr("exporter.runs.pipeline.Zygote", start)
    monkeypatch.setattr("exporter.core.environment.has_gpu_driver", lambda: driver)
    with pytest.raises(JobError, match="not started"):
        pipeline.run(request_for("tiny:pair", tmp_path / "bundle", "trace,onnx,compile,compile:default"))
    own = tuple(",".join(targets.facts(name).preloads) for name in ("compile", "onnx"))
    assert started == [() if driver else own]
    assert own[0] == "torch._inductor.compile_fx"


def recipe_that(folder: Path, act: str) -> str:
    """Write a recipe that does something to its own file while it loads the model; return its name."""
    (folder / "own.py").write_text(
        "import pathlib\n"
        "import torch\n"
        "class net:\n"
        "    @staticmethod\n"
        "    def load(weights):\n"
        f"        {act}\n"
        "        return torch.nn.Linear(2, 2)\n"
        "    inputs = staticmethod(lambda: {'input': torch.ones(2, 2)})\n"
    )
    return f"{folder / 'own'}:net"


def test_a_recipe_that_changes_while_it_is_loaded_is_refused(run: Run, tmp_path: Path) -> None:
    """The provenance would have the hash of another file than the one that was exported."""
    name = recipe_that(tmp_path, "pathlib.Path(__file__).write_text('# saved in an editor')")
    with pytest.raises(UsageError, match=r"own\.py changed after the run began") as raised:
        run(name, "trace")
    assert raised.value.remedy == "run it again"


def test_a_recipe_that_is_only_touched_is_accepted(run: Run, tmp_path: Path) -> None:
    manifest, _ = run(recipe_that(tmp_path, "pathlib.Path(__file__).touch()"), "trace")
    assert manifest.status == "complete"
