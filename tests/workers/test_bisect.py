"""Finding the operator at which a variant goes wrong, with planted defects."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import bisecting
from support.commands import NATIVE, Cli, recipe_path
from torch import nn

from exporter import targets
from exporter.core import environment, tolerances
from exporter.core.records import MetricRecord, SessionRecord, VariantRecord
from exporter.evidence import golden as goldens
from exporter.model import tensor_files
from exporter.report import bisection
from exporter.runs import bisect_variant
from exporter.workers.bisect import Bisection, Node, arithmetic, child, fixing, repro, search, verdicts
from exporter.workers.bisect.graphs import Graph


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
def test_every_first_bad_position_is_found_in_few_tests(count: int) -> None:
    for wanted in range(count):
        asked: list[int] = []

        def is_bad(at: int, wanted: int = wanted, asked: list[int] = asked) -> bool:
            asked.append(at)
            return at >= wanted

        assert search.first_bad(count, is_bad) == (wanted - 1, wanted)
        assert len(asked) <= count.bit_length()
        assert count - 1 not in asked


def test_positions_that_cannot_be_tested_are_passed_over() -> None:
    unknown = {3, 4, 5}
    assert search.first_bad(10, lambda at: None if at in unknown else at >= 4) == (2, 6)
    assert search.first_bad(5, lambda at: None) == (-1, 4)


def test_the_latest_start_of_a_bad_range_is_found() -> None:
    assert search.last_start(9, lambda start: start <= 5) == 5
    assert search.last_start(9, lambda start: start <= -1) == -1


def graph_of(model: nn.Module, *inputs: torch.Tensor) -> Graph:
    dynamic = tuple({0: torch.export.Dim("rows", min=1, max=8)} for _ in inputs)
    with torch.no_grad():
        return Graph(torch.export.export(model.eval(), inputs, dynamic_shapes=dynamic))


class Parts(nn.Module):
    """Has tuples, sizes and a value that is used much later."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        early = self.layer(x)
        low, high = early.chunk(2, -1)
        most, where = torch.max(low * high, -1)
        return early.reshape(x.shape[0] * 2, 3).sum(-1), most + where + y.sum()


def test_every_cut_and_the_rest_behind_it_compute_the_same_as_the_whole() -> None:
    inputs = (torch.randn(4, 6), torch.randn(4, 2))
    model = Parts()
    graph = graph_of(model, *inputs)
    given = (torch.randn(7, 6), torch.randn(7, 2))
    wanted = model(*given)
    assert len(graph.cuts) > 4
    for cut in graph.cuts[:-1]:
        values = dict(zip(graph.frontier(cut), arithmetic.eager(graph.until(cut), given), strict=True))
        values |= dict(zip((n for n in graph.nodes if n.op == "placeholder"), given, strict=True))
        rest, taken = graph.between(cut, graph.cuts[-1])
        results = dict(zip(graph.frontier(graph.cuts[-1]), wanted, strict=True))
        left = [n for n in results if n not in values]
        got = arithmetic.eager(rest, [values[node] for node in taken])
        torch.testing.assert_close(got, tuple(results[n] for n in left))


def test_the_reference_is_computed_in_float64() -> None:
    model = Parts()
    inputs = (torch.randn(4, 6), torch.randn(4, 2))
    graph = graph_of(model, *inputs)
    whole = graph.until(graph.cuts[-1])
    exact = arithmetic.reference(whole, inputs)
    assert [one.dtype for one in exact] == [torch.float64] * 2
    torch.testing.assert_close(exact, model.double()(*(one.double() for one in inputs)), rtol=1e-14, atol=1e-14)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_half_complex_numbers_are_widened() -> None:
    assert arithmetic.doubled(torch.zeros(2, dtype=torch.complex32)).dtype == torch.complex128
    assert arithmetic.doubled(torch.complex32) == torch.complex128
    assert arithmetic.doubled(torch.int8) == torch.int8


def test_complex_numbers_of_the_reference_are_wide_too() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(torch.fft.rfft(x).to(torch.complex64) @ self.weight)

    model, x = Spectral(), torch.randn(3, 6)
    graph = graph_of(model, x)
    (exact,) = arithmetic.reference(graph.until(graph.cuts[-1]), (x,))
    wanted = torch.fft.irfft(torch.fft.rfft(x.double()) @ model.weight.to(torch.complex128))
    torch.testing.assert_close(exact, wanted, rtol=1e-12, atol=1e-12)


def test_errors_are_multiples_of_eagers_own() -> None:
    exact = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    own = exact.float() + 1e-6
    assert arithmetic.error(exact.float() + 5e-6, own, exact) == pytest.approx(5, rel=0.2)
    assert arithmetic.error(torch.tensor([1.0, float("nan"), 4.0]), own, exact) == float("inf")
    assert arithmetic.error(torch.ones(2), own, exact) == float("inf")
    assert arithmetic.error(torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 2])) == 0
    assert arithmetic.error(torch.tensor([2, 2]), torch.tensor([1, 3]), torch.tensor([1, 2])) == float("inf")
    assert arithmetic.error(exact.float(), exact.float(), exact) <= 1  # eager is exact, so one ulp is not blamed


@pytest.fixture
def inquire(tmp_path: Path) -> Any:
    """A function that exports a block to a variant, with what the test has planted, and examines it."""
    return functools.partial(bisecting.inquire, tmp_path)


def test_a_wrong_translation_to_onnx_is_found(inquire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.onnx.export

    def export(*args: Any, **kwargs: Any) -> Any:
        made = usual(*args, **kwargs)
        for node in made.model.graph:
            if node.op_type == "Tanh":
                node.op_type = "Sigmoid"
        return made

    monkeypatch.setattr(torch.onnx, "export", export)
    found = inquire("onnx")
    assert found.verdict == "converter"
    assert [node.operator for node in found.nodes] == ["aten.tanh.default"]
    assert found.nodes[0].place.rpartition(":")[0] == str(Path(recipe_path("blocks:block").rpartition(":")[0]))
    assert found.nodes[0].introduced > 1000
    assert found.nodes[0].inherited > 1000
    assert found.builds <= 10
    assert found.files == ("repro.py", "issue.md")
    script = tmp_path / "found" / "repro.py"
    assert len(script.read_text().splitlines()) < 60
    # The translation outside this process, where nothing is planted, is right.
    issue = (script.parent / "issue.md").read_text()
    assert "It does not fail with random values:\n\n```\n" in issue
    assert float(issue.rpartition("```\n")[0].rpartition("```\n")[2].split()[0]) < 1e-5


def test_an_artifact_that_differs_from_a_new_export_is_reported(inquire: Any) -> None:
    import onnx

    def spoil(path: Path) -> None:
        model = onnx.load(str(path))
        weight = next(one for one in model.graph.initializer if list(one.dims) == [8, 32] or list(one.dims) == [32, 8])
        weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 1.01, weight.name))
        onnx.save(model, str(path))

    found = inquire("onnx", spoil=spoil)
    assert found.verdict == "altered artifact"
    assert "third.weight" in found.sentence
    assert found.builds == 1


def test_an_artifact_that_does_not_load_is_reported(inquire: Any) -> None:
    found = inquire("trace", spoil=lambda path: path.write_bytes(b"none"))
    assert found.verdict == "altered artifact"


def test_the_operator_that_a_runtime_lacks_is_found(inquire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = torch.jit.load

    def load(path: Any, **how: Any) -> Any:
        module = usual(path, **how)
        if "aten::tanh" in str(module.inlined_graph):
            raise RuntimeError(f"{path}: no kernel for aten::tanh")
        return module

    monkeypatch.setattr(torch.jit, "load", load)
    found = inquire("trace@bf16", fix=True)
    assert found.verdict == "converter"
    assert found.sentence.endswith("trace@bf16.pt: no kernel for aten::tanh")
    assert [node.operator for node in found.nodes] == ["aten.tanh.default"]
    assert found.notes[0] == "no set of layers was found with which the variant passes"
    assert sum("no kernel for aten::tanh" in note for note in found.notes) == 1


def test_layers_are_ranked_by_what_int8_costs_them(inquire: Any) -> None:
    found = inquire("trace@int8", "blocks:coarse")
    assert found.verdict == "reduced precision"
    assert found.nodes[0].module == "second"
    assert {node.module for node in found.nodes} == {"first", "second", "third"}
    assert found.nodes[0].introduced > 3 * found.nodes[1].introduced


def test_the_layer_that_has_to_stay_in_float_is_found(inquire: Any) -> None:
    found = inquire("trace@int8", "blocks:coarse", fix=True)
    assert found.fix is not None
    assert found.fix.keep_float == ("second",)
    assert 0.2 < found.fix.slower < 5
    rendered = bisection.render(found, Path("x"))
    assert "It passes with --keep-float second" in rendered
    assert "As a variant of its own, beside trace@int8: trace@int8+fp32:second" in rendered


def test_layers_are_tried_without_an_exported_program(inquire: Any) -> None:
    found = inquire("trace@int8", "blocks:choosy", fix=True)
    assert found.verdict == "reduced precision"
    assert found.notes[0].startswith("layers were not ranked, because there is no exported program: torch.export")
    assert found.fix.keep_float == ("second",)


def test_the_layer_that_has_to_stay_in_float32_is_found(inquire: Any) -> None:
    found = inquire("trace@bf16", "blocks:confident", fix=True)
    assert found.verdict == "reduced precision"
    assert "Inf" in found.sentence
    assert found.not_finite.operator == "aten.log.default"
    assert found.nodes[0].module == "odds"
    assert found.fix.keep_float == ("odds",)
    assert found.fix.slower > 0.2


def test_the_module_around_the_layers_is_found_if_values_are_too_large_between_them(inquire: Any) -> None:
    found = inquire("trace@fp16", "blocks:loud", fix=True)
    assert found.fix.keep_float == ("pair",)
    assert found.fix.options == "--keep-float pair"


def test_the_layer_that_costs_the_metric_is_found(inquire: Any) -> None:
    asked = MetricRecord(eager=0.0, samples=2, most_loss=0.015)
    found = inquire("trace@int8", "blocks:uneven", fix=True, metric=asked)
    assert "the maximum loss is 0.015" in found.sentence
    assert found.fix.keep_float == ("second",)


def test_the_operator_that_inductor_gets_wrong_is_left_to_torch(inquire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    def wrong(x: Any) -> Any:
        return lowering.ops.add(lowering.ops.erf(x), lowering.ops.constant(1e-3, torch.float32))

    monkeypatch.setitem(lowering.lowerings, torch.ops.aten.erf.default, lowering.make_pointwise(wrong))
    found = inquire("compile", "blocks:short", fix=True)
    assert found.verdict == "compiler"
    assert [node.operator for node in found.nodes] == ["aten.gelu.default"]  # which inductor decomposes
    assert found.fix.options == "--fallback aten.gelu.default"


def test_an_operator_without_a_kernel_in_the_precision_is_named(inquire: Any) -> None:
    found = inquire("onnx@bf16", "blocks:short")
    assert found.verdict == "converter"
    assert "it fails by itself: onnxruntime has no kernel for " in found.sentence
    assert "NOT_IMPLEMENTED" in found.sentence


@pytest.mark.parametrize(("layer", "share"), [("small", 0.0385), ("large", 0.9615)])
def test_layers_with_nearly_all_weights_are_not_recommended(layer: str, share: float) -> None:
    model = nn.ModuleDict({"small": nn.Linear(4, 1, bias=False), "large": nn.Linear(100, 1, bias=False)})
    fix = fixing.layers(replace(trials(Builds(targets.Options(precision="int8"), {layer})), plain=model), [layer])
    assert fix is not None
    assert fix.kept_weights == pytest.approx(share, abs=1e-3)
    found = Bisection("net", "trace@int8", "batch=1", "reduced precision", "int8 loses it", fix=fix)
    rendered = " ".join(bisection.render(found, Path("x")).split())
    assert ("As a variant of its own" in rendered) == (layer == "small")
    assert (f"It passes with --keep-float {layer}" in rendered) == (layer == "small")
    hold = "These layers hold 96% of the weights, so hardly anything is left in int8"
    assert (hold in rendered) == (layer == "large")


@dataclass
class Builds:
    """Stands for a builder: an artifact fails to build with `broken`, and passes with all of `needed`."""

    options: targets.Options
    needed: set[str]
    broken: str = ""
    count: int = 0
    program: Any = field(default_factory=lambda: SimpleNamespace(example=()))

    def plain(self, text: str) -> str:
        return text

    def again(self) -> Any:
        self.count += 1
        given = {*self.options.keep_float, *self.options.inductor}
        if self.broken in given:
            raise ValueError(f"cannot build {self.broken}")
        return lambda inputs: () if given >= self.needed else None


def trials(builds: Any) -> fixing.Trials:
    golden = goldens.Golden((), tolerances.FLOAT32, {"int8": goldens.Precision(tolerances.BY_PRECISION["int8"])})
    return fixing.Trials(builds, golden, lambda run, _: run(()) == (), nn.Linear(1, 1), lambda step: None)


def test_the_smallest_set_of_layers_is_found_in_few_builds() -> None:
    names = [f"layer{number}" for number in range(64)]
    builds = Builds(targets.Options(precision="int8"), {"layer3", "layer5"})
    fix = fixing.layers(trials(builds), names)
    assert fix is not None
    assert fix.keep_float == ("layer3", "layer5")
    assert fix.slower is not None
    assert builds.count < 20


def test_layers_without_which_nothing_is_left_to_quantize_are_passed_over() -> None:
    """trace@int8 quantizes only Linear layers: if all of them stay, it cannot be built, whatever else is kept."""

    class Linear(Builds):
        def again(self) -> Any:
            if {"fc1", "fc2"} <= {*self.options.keep_float}:
                self.count += 1
                raise ValueError("there is no Linear layer to quantize")
            return super().again()

    fix = fixing.layers(trials(Linear(targets.Options(precision="int8"), {"fc1"})), ["fc1", "fc2", *"abcdefgh"])
    assert fix is not None
    assert fix.keep_float == ("fc1",)


def test_why_a_build_failed_is_told() -> None:
    asked = trials(Builds(targets.Options(precision="int8"), {"a"}, broken="c"))
    fix = fixing.layers(asked, ["b", "a", "c"])
    assert fix is not None
    assert fix.keep_float == ("a",)
    assert asked.notes()[0].startswith("a build with b, a, c in float failed: ValueError: cannot build c")
    asked = trials(Builds(targets.Options(), {"x=1"}, broken="freezing=False"))
    assert fixing.setting(asked, verdicts.settings("compile", targets.Options())) is None
    assert asked.notes()[0].startswith("a build with freezing=False failed: ValueError: cannot build freezing=False")


def test_the_setting_of_a_compiler_that_mends_a_variant_is_found() -> None:
    usual = targets.Options()
    fix = fixing.setting(trials(Builds(usual, {"cpp.simdlen=1"})), verdicts.settings("compile", usual))
    assert fix is not None
    assert fix.options == "--inductor cpp.simdlen=1"
    assert (
        next(iter(verdicts.settings("compile", usual, ("aten.erf.default",)))) == "torch's kernel of aten.erf.default"
    )
    assert next(iter(verdicts.settings("compile", usual, ("aten.erf.default", "aten.mm.default")))) == "freezing=False"
    assert not any("cpp" in one for one in verdicts.settings("compile", targets.Options(device="cuda")))
    assert verdicts.settings("compile", targets.Options(variant="backend=tvm")) == {}
    found = Bisection("m", "compile", "batch=2 seed 0", "compiler", "inductor", fix=replace(fix, slower=1.5))
    assert "passes with --inductor cpp.simdlen=1, and takes 1.50 times as long." in bisection.render(found, Path("x"))


def test_the_level_of_optimizations_that_mends_a_variant_is_found(
    inquire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime as ort

    usual = ort.InferenceSession.run

    def run(self: Any, names: Any, given: Any, options: Any = None) -> Any:
        level = self.get_session_options().graph_optimization_level.name
        wrong = level in ("ORT_ENABLE_ALL", "ORT_ENABLE_EXTENDED")
        return [one * (1.01 if wrong else 1) for one in usual(self, names, given, options)]

    monkeypatch.setattr(ort.InferenceSession, "run", run)
    monkeypatch.setattr(repro, "write", lambda *_: ())
    found = inquire("onnx", "tiny:mlp", fix=True)
    assert found.verdict == "compiler"
    assert found.fix.options == "--graph-optimization basic"
    assert found.fix.slower is not None


RUNNER = """\
#!{python}
# Runs exporter-run, and spoils the outputs of artifacts that compute a hyperbolic tangent.
import array, json, subprocess, sys
done = subprocess.run([{runner!r}, *sys.argv[1:]])
with open(sys.argv[2], "rb") as file:
    spoils = b"tanh" in file.read()
if done.returncode == 0 and spoils:
    with open(sys.argv[sys.argv.index("--outputs") + 1], "r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        file.seek(start)
        numbers = array.array("f", file.read())
        file.seek(start)
        file.write(array.array("f", [-one for one in numbers]).tobytes())
sys.exit(done.returncode)
"""


@pytest.mark.skipif(not NATIVE, reason="exporter-run is not built")
def test_the_operator_that_is_wrong_in_cpp_alone_is_found(inquire: Any, tmp_path: Path) -> None:
    wrapper = tmp_path / "exporter-run"
    wrapper.write_text(RUNNER.format(python=sys.executable, runner=str(environment.find_runner())))
    wrapper.chmod(0o755)
    found = inquire("trace", runner=wrapper)
    assert (found.verdict, found.passes) == ("runtime", False)
    assert found.sentence == "it is right in Python, and wrong by itself in C++, with exact inputs"
    assert [node.operator for node in found.nodes] == ["aten.tanh.default"]
    part, given, expected = (tmp_path / "found" / file for file in found.files)
    command = [wrapper, "run", part, "--inputs", given, "--outputs", tmp_path / "outputs"]
    assert subprocess.run(command, check=False).returncode == 0
    (wanted,), (got,) = (tensor_files.read(file)[0].values() for file in (expected, tmp_path / "outputs"))
    torch.testing.assert_close(got, -wanted)


@pytest.mark.skipif(not NATIVE, reason="exporter-run is not built")
def test_an_artifact_that_is_right_in_cpp_is_not_blamed(inquire: Any) -> None:
    found = inquire("export", runner=environment.find_runner())
    assert (found.verdict, found.passes, found.builds) == ("rounding", True, 0)


def test_that_cpp_was_not_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    found = Bisection("m", "export", "batch=2 seed 0", "rounding", "the variant passes", passes=True)
    failed = (SessionRecord("native", "failed"),)
    told = bisect_variant._against(VariantRecord("export", "export", "failed", "check", "no", sessions=failed), found)
    assert told.notes == ("it was not run in C++: EXPORTER_RUN names /nowhere/exporter-run, which is not a program",)
    assert told.remedy == "correct EXPORTER_RUN, or unset it"


def test_a_script_for_torchscript_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(Parts(), torch.randn(4, 6), torch.randn(4, 2))
    module, inputs = graph.until(graph.cuts[-1]), (torch.randn(3, 6), torch.randn(3, 2))
    made = repro._script(
        Bisection("m", "script", "", "converter", "it differs"), module, inputs, "script", targets.Options()
    )
    assert made is not None
    (tmp_path / "made.py").write_text(made)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("made")  # raises if TorchScript and eager differ


@pytest.mark.parametrize(
    ("target", "options", "line"),
    [
        ("compile", {"inductor": ("cpp.simdlen=1",)}, "inductor_configs={'freezing': True, 'cpp.simdlen': 1})"),
        ("onnx", {"graph_optimization": "basic"}, "onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC"),
        ("compile", {"variant": "default"}, "torch.compile(module, backend='inductor', mode='default')"),
        ("compile", {"variant": "default", "inductor": ("freezing=True",)}, "options={'freezing': True})"),
        ("compile", {"variant": "backend=eager"}, "torch.compile(module, backend='eager', mode=None)"),
    ],
)
def test_a_script_has_the_options_of_the_variant(target: str, options: dict[str, Any], line: str) -> None:
    build = repro._build(target, targets.Options(**options))
    assert build is not None
    assert line in build
    compile(f"def variant(module, inputs):\n{build}", "repro.py", "exec")


def test_fix_is_for_variants_that_have_options(cli: Cli, bundle: Path) -> None:
    done = cli("bisect", bundle, "trace", "--fix")
    assert (done.code, "--fix needs a compile or onnx variant" in done.err) == (2, True)


def test_the_command_blames_nothing_that_is_right(cli: Cli, bundle: Path) -> None:
    done = cli("bisect", bundle, "onnx", "--json", "-q")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["verdict"], found["passes"], found["nodes"], found["builds"]) == ("rounding", True, [], 0)


@pytest.mark.parametrize(
    ("ratio", "said"), [(None, "no more than"), (0.0, "no more than"), (1.004, "equal to"), (2.5, "2.5 times")]
)
def test_an_error_is_compared_with_eagers(ratio: float | None, said: str) -> None:
    assert child.beside(ratio) == said


def test_a_model_that_takes_its_state_as_inputs_is_not_blamed(inquire: Any) -> None:
    found = inquire("trace", "stateful:average", state="inputs")
    assert (found.verdict, found.passes) == ("rounding", True)


def test_the_command_names_what_a_trace_bakes_in(cli: Cli, tmp_path: Path) -> None:
    done = cli("bisect", recipe_path("defects:loop"), "trace", "--out", tmp_path / "found")
    assert done.code == 1
    assert "constant baked in" in done.out
    assert "defects.py" in done.out


def test_a_variant_that_failed_elsewhere_is_not_called_right() -> None:
    found = Bisection("m", "export", "batch=2 seed 0", "rounding", "the variant passes", passes=True)
    sessions = (SessionRecord("python", "passed"), SessionRecord("native", "failed"))
    record = VariantRecord("export", "export", "failed", "check", "no kernel", "export again", sessions=sessions)
    told = bisect_variant._against(record, found)
    assert (told.verdict, told.passes) == ("not located", False)
    assert told.sentence.endswith("the variant failed at check (native): no kernel")
    assert told.remedy == "export again"
    assert bisect_variant._against(replace(record, status="passed"), found) == found


def test_wrong_usage(cli: Cli, bundle: Path) -> None:
    done = cli("bisect", bundle, "compile")
    assert done.code == 2
    assert "the bundle has no variant compile" in done.err
    assert "choose one of" in done.err
    done = cli("bisect", bundle, "onnx", "--batch", "3")
    assert done.code == 2
    assert "a bundle has its own settings" in done.err
    assert "--batch" in done.err
    assert cli("bisect", bundle, "onnx", "--weights", "random").code == 2


@pytest.mark.parametrize("columns", [80, 120])
def test_the_report_fits_its_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    node = Node("tanh", "aten.tanh.default", "encoder.layer.0", "/a/model.py:3", 1234.5)
    found = Bisection("m", "onnx", "batch=2 seed 0", "converter", "it is " + "wrong " * 40, nodes=(node,), builds=9)
    text = bisection.render(replace(found, size=40, files=("repro.py",)), Path("m-bisect/onnx"))
    assert max(map(len, text.splitlines())) <= columns
    assert "aten.tanh.default in encoder.layer.0, introduces 1.23e+03 times eager's error" in " ".join(text.split())
    assert "9 builds, for a program of 40 nodes" in text
    assert "m-bisect/onnx/repro.py" in text
