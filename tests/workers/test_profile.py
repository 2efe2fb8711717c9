"""Tests of `exporter profile` on real artifacts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from support.commands import Cli, Run, request_for
from support.lending import lend

from exporter.core import machine_load
from exporter.core.errors import JobError, UsageError
from exporter.core.json_codec import from_json
from exporter.core.profile_records import Profile, Step, Steps
from exporter.core.timing_records import MachineLoad
from exporter.evidence import benchmark
from exporter.model import origins, steps
from exporter.runs import pipeline, profile_bundle
from exporter.runs.profile_bundle import Asked
from exporter.targets import _steps_inductor, _steps_onnx
from exporter.workers.children import Zygote
from exporter.workers.profile.operators import Eager, of_program

SLOW = "layers.1"
NAMES = ("trace", "script", "compile", "export", "onnx", "compile:default")


@pytest.fixture(scope="module")
def found(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Return the profile of a model with one layer that is larger than the others."""
    place = tmp_path_factory.mktemp("profile") / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        lend(zygote, patch)
        pipeline.run(request_for("profiled:recipe", place, ",".join(NAMES), dynamic="none"))
        profile, recorded = profile_bundle.run(place, Asked(seconds=0.3), lambda step: None)
    assert list(recorded) == [one.name for one in profile.variants]
    return profile


def test_every_variant_is_profiled(found: Profile) -> None:
    assert [one.name for one in found.variants] == ["eager", *NAMES]
    assert [one.reason for one in found.variants] == [""] * (1 + len(NAMES))


def test_the_larger_layer_is_named_first_in_every_variant(found: Profile) -> None:
    for variant in found.variants:
        line = found.lines[variant.times[0].line]
        assert line.module in (SLOW, f"{SLOW}.dense"), variant.name  # its activation is on the same line
        assert line.place.endswith("tests/recipes/profiled.py:21")


def test_shares_add_up(found: Profile) -> None:
    for variant in found.variants:
        assert variant.total == pytest.approx(1, abs=0.02)
        assert variant.outside_ms > -1e-6
        assert variant.elsewhere_ms < 0.1 * variant.latency_ms


def test_work_is_counted(found: Profile) -> None:
    (line,) = (one for one in found.lines if one.module == f"{SLOW}.dense" and one.flop)
    assert line.flop == 2 * 64 * 256 * 16384
    assert line.bytes >= 4 * (256 * 16384 + 64 * 256 + 64 * 16384)
    assert found.peaks.bytes_per_s > 1e8
    assert found.peaks.flop_per_s["fp32"] > 1e8


@pytest.mark.usefixtures("lent_zygote")
def test_unknown_variants_are_refused(tmp_path: Path) -> None:
    pipeline.run(request_for("tiny:mlp", tmp_path / "bundle", "trace"))
    with pytest.raises(UsageError, match="no artifact of onnx"):
        profile_bundle.run(tmp_path / "bundle", Asked(("onnx",)), lambda step: None)


def test_eager_operators_know_their_module_and_their_work() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    recorder = Eager(model, lambda inputs: (model(*inputs),), "cpu")
    with torch.no_grad():
        steps = recorder.record((torch.ones(2, 4),), 2)
    assert [one.name for one in steps.steps] == ["aten::t", "aten::addmm", "aten::relu"]
    assert [one.module for one in recorder.works] == ["0", "0", "1"]
    assert [one.flop for one in recorder.works] == [0.0, 2 * 2 * 4 * 8, 0.0]
    assert recorder.works[0].bytes == 0  # a view
    assert recorder.works[2].bytes == 2 * 4 * 16


def test_operators_in_branches_are_counted() -> None:
    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x - 1, (x,))

    program = torch.export.export(Branch(), (torch.ones(4, 4),))
    works = {one.name: one for one in of_program(program.module(check_guards=False), (torch.ones(4, 4),))}
    assert works["cond"].flop == 2 * 4**3


def test_a_node_belongs_to_the_first_kernel_that_names_it() -> None:
    graph = {"linear": ("x",), "gelu": ("linear",), "norm": ("gelu",), "add": ("norm", "x")}
    found = origins.claimed([["gelu"], ["norm", "gelu"], ["add", "norm"]], graph)
    assert found == [["linear", "gelu"], ["norm"], ["add"]]
    assert origins.claimed([["linear"], ["linear"], []], graph)[1:] == [["linear"], []]


def test_kernels_with_a_librarys_name_take_their_turn() -> None:
    assert _steps_inductor.between([0, None, 2], 3) == [0, 1, 2]
    assert _steps_inductor.between([None, None], 1) == [0, 0]
    assert _steps_inductor.between([None], 0) == [None]


def test_paths_of_dynamo_are_read() -> None:
    assert origins.within("L['self'].model.layers.0") == "layers.0"
    assert origins.within("flat.model") == ""


def test_a_bundle_that_was_timed_is_profiled_beside_itself(run: Run, cli: Cli, tmp_path: Path) -> None:
    """Its manifest has a row of eager, which has no artifact."""
    _, place = run("tiny:mlp", bench=True, time_budget=0.1)
    out = tmp_path / "out"
    done = cli("profile", place, "--out", out, "--seconds", "0.2")
    assert done.code == 0, done.err
    assert {"eager", "trace"} <= set(done.out.split())
    assert (out / "profile.html").is_file()
    assert cli("check", place).code == 0
    assert cli("profile", place, "--out", place / "inside").code == 2
    assert cli("profile", tmp_path).code == 2


def test_a_busy_machine_is_noted(run: Run, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = MachineLoad(cpus=2, others=0.6, steal=0.0, throttled=0.0, hot=0, load=3.0)
    waited: list[float] = []

    def wait(limit_s: float, progress: Callable[[str], None]) -> str:
        waited.append(limit_s)
        progress("wait: load")
        return ""

    monkeypatch.setattr(machine_load.Watch, "load", lambda _: load)
    monkeypatch.setattr(machine_load, "wait", wait)
    _, place = run("tiny:mlp", bench=False)
    done = cli("profile", place, "--out", tmp_path / "out", "--seconds", "0.2", "--wait-quiet", 7)
    assert (done.code, waited, "wait: load" in done.err) == (0, [7], True)
    said = "the machine was busy during timing: other processes used 60% of 2 CPUs, load 3.0; profile again on a quiet"
    assert said in " ".join(done.out.split())
    assert "(in doubt, because the machine was busy)" in " ".join(done.out.split())
    found = from_json(Profile, (tmp_path / "out" / "profile.json").read_bytes())
    assert [note.partition(";")[0] for note in found.notes] == [said.partition(";")[0]]


@pytest.mark.parametrize("kept", ["carry", "inputs"])
def test_models_with_state_are_profiled(run: Run, kept: str) -> None:
    _, place = run("stateful:counter", "trace,export", bench=False, state=kept)
    found, steps = profile_bundle.run(place, Asked(seconds=0.2), lambda step: None)
    assert [(one.name, one.reason) for one in found.variants] == [("eager", ""), ("trace", ""), ("export", "")]
    assert all(one.steps for one in steps.values())


def test_a_session_that_fails_is_a_row_with_its_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, place = run("tiny:mlp", "trace,onnx", bench=False)
    measure = benchmark.measure

    def fails(subjects: dict[str, benchmark.Timed], *args: Any) -> dict[str, benchmark.Series]:
        if "eager" in subjects:
            raise JobError("eager hangs", "wait")
        found = measure(subjects, *args)
        if "onnx" in found:
            found["onnx"].error = JobError("onnx dies")
        return found

    monkeypatch.setattr(benchmark, "measure", fails)
    found, _ = profile_bundle.run(place, Asked(seconds=0.2), lambda step: None)
    assert [(one.name, one.reason) for one in found.variants] == [
        ("trace", ""),
        ("eager", "eager hangs"),
        ("onnx", "onnx dies"),
    ]


def test_nodes_inside_a_branch_are_not_counted_twice() -> None:
    events = [{"ts": 0, "dur": 100}, {"ts": 10, "dur": 30}, {"ts": 50, "dur": 20}, {"ts": 200, "dur": 5}]
    assert _steps_onnx._own(events) == [50.0, 30.0, 20.0, 5.0]


def test_nodes_in_the_place_of_others_compute_what_these_do(tmp_path: Path) -> None:
    """onnxruntime makes a matrix product and an addition of three dimensions one of two, between changes of shape."""

    def save(name: str, *nodes: tuple[str, str, list[str], str]) -> Path:
        made = [onnx.helper.make_node(kind, inputs, [output], name=own) for kind, own, inputs, output in nodes]
        for node in made:
            node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f'File "net.py", line 3, in {node.name}')
            node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"%{node.name} : call_function")
        graph = onnx.helper.make_graph(made, "net", [], [])
        onnx.save(onnx.helper.make_model(graph), tmp_path / name)
        return tmp_path / name

    model = save(
        "model.onnx",
        ("Relu", "before", ["x"], "a"),
        ("MatMul", "product", ["a", "w"], "b"),
        ("Add", "sum", ["b", "bias"], "c"),
        ("Relu", "after", ["c"], "d"),
    )
    ran = save(
        "ran.onnx",
        ("Relu", "before", ["x"], "a"),
        ("Reshape", "flat", ["a", "shape"], "new"),
        ("Gemm", "gemm", ["new", "w", "bias"], "newer"),
        ("Reshape", "back", ["newer", "other"], "c"),
        ("Relu", "after", ["c"], "d"),
    )
    found = {name: {one.node for one in own} for name, own in _steps_onnx._origins(model, ran).items()}
    assert found == {
        "before": {"before"},
        **{name: {"product", "sum"} for name in ("flat", "gemm", "back")},
        "after": {"after"},
    }


def test_nodes_get_the_kernels_that_they_launch() -> None:
    trace = {
        "baseTimeNanoseconds": 1_000_000,
        "traceEvents": [
            {"cat": "cuda_runtime", "ts": 12.0, "args": {"correlation": 1}},
            {"cat": "kernel", "ts": 40.0, "dur": 7.0, "args": {"correlation": 1}},
            {"cat": "cuda_driver", "ts": 60.0, "args": {"correlation": 2}},
            {"cat": "gpu_memcpy", "ts": 90.0, "dur": 3.0, "args": {"correlation": 2}},
            {"cat": "cuda_runtime", "ts": 61.0, "args": {"correlation": 3}},  # launches nothing
            {"cat": "cuda_runtime", "ts": 400.0, "args": {"correlation": 4}},  # outside of the nodes
            {"cat": "kernel", "ts": 401.0, "dur": 9.0, "args": {"correlation": 4}},
            {"ph": "M", "name": "process_name"},
        ],
    }
    launches = _steps_onnx.launches_in(trace)
    assert launches == [(1_012_000, 7.0), (1_060_000, 3.0), (1_400_000, 9.0)]
    nodes = [
        {"ts": 10, "dur": 100, "args": {"provider": "CUDAExecutionProvider"}},  # around the next
        {"ts": 11, "dur": 5, "args": {"provider": "CUDAExecutionProvider"}},
        {"ts": 30, "dur": 5, "args": {"provider": "CPUExecutionProvider"}},
    ]
    assert _steps_onnx._kernels(nodes, launches, 1_000_000) == [3.0, 7.0, None]


def test_an_interrupted_step_does_not_count_and_the_steps_keep_their_part_of_the_call() -> None:
    calls = [Steps((Step("a", 0, 10), Step("b", 10, 30)), 50.0) for _ in range(8)]
    calls[3] = Steps((Step("a", 0, 10), Step("b", 10, 900)), 950.0)
    calls.append(Steps((Step("a", 0, 10),), 20.0))
    found = steps.typical(calls)
    assert [one.duration_us for one in found.steps] == pytest.approx([10, 30])
    assert found.duration_us == pytest.approx(50)
    uneven = [Steps((Step("a", 0, 10 + 100 * (n % 2)), Step("b", 0, 10 + 100 * (n % 2 == 0))), 130.0) for n in range(8)]
    assert sum(one.duration_us for one in steps.typical(uneven).steps) == pytest.approx(120)
