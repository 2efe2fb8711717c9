"""Variants that compute in another precision: inputs and outputs keep their dtypes, and tolerances differ."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import packages
from support.commands import NATIVE, Run
from torch._inductor import config as inductor

import exporter
from exporter import targets
from exporter.bundle import layout
from exporter.core import environment, machine_code, precisions, tolerances
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError, ExportError, UsageError
from exporter.core.parity_records import Tolerance
from exporter.core.records import Manifest
from exporter.core.size_range import Range
from exporter.evidence import golden, make_golden, parity
from exporter.model import capture, precision
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.targets import Options, Variant, _int8, _int8_onnx
from exporter.targets import compile as compiled
from exporter.targets import onnx as onnx_target


class Scaled(torch.nn.Module):
    """A layer with a norm, a complex buffer and an integer input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear, self.norm = torch.nn.Embedding(8, 16), torch.nn.Linear(16, 4), torch.nn.LayerNorm(4)
        self.register_buffer("turn", torch.tensor([1j]))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.norm(self.linear(x + self.table(n) + self.turn.imag.to(x.dtype))), n


X, N = torch.randn(3, 16), torch.arange(3)


def test_a_cast_module_keeps_the_dtypes_of_inputs_and_outputs() -> None:
    module = Scaled()
    module.requires_grad_(False)
    wanted = module(X, N)
    with precision.computing(module, "bf16", ("float32", "int64")) as cast:
        assert module.linear.weight.dtype == torch.bfloat16
        got = cast(X, N)
    assert [t.dtype for t in got] == [torch.float32, torch.int64]
    assert 0 < float((got[0] - wanted[0]).abs().max()) < 0.1
    assert module.linear.weight.dtype == torch.float32
    assert torch.equal(module(X, N)[0], wanted[0]), "the weights are restored exactly"
    assert precision.cast(module, "fp32", ("float32", "int64")) is module


def test_variants_are_parsed_with_their_precisions() -> None:
    found = targets.parse("trace,compile:default,onnx@int8,script@fp32", ("fp32", "int8"))
    assert [v.name for v in found] == [
        "trace", "trace@int8", "compile:default", "onnx@int8", "script",
    ]  # fmt: skip
    assert Variant("onnx", "", "int8").artifact == "model@int8.onnx"
    assert targets.left_out("script,trace@int8", ("fp32", "int8")) == (
        "script does not support int8; it has fp32, tf32, bf16, fp16",
    )
    assert targets.left_out("script:any@fp32", ("int8",)) == ()
    assert targets.parse_precisions(" bf16,fp32,bf16") == ("bf16", "fp32")


@pytest.mark.parametrize("text", ["script@int8", "trace@fp8", "trace@", "compile:default@int8"])
def test_a_precision_that_a_target_lacks(text: str) -> None:
    with pytest.raises(UsageError, match="has no precision") as raised:
        targets.parse(text)
    assert "fp16" in raised.value.remedy


def test_an_unknown_precision() -> None:
    with pytest.raises(UsageError, match="no precision 'half'") as raised:
        targets.parse_precisions("fp32,half")
    assert "bf16" in raised.value.remedy


def test_a_golden_stores_the_tolerance_and_outputs_of_each_precision(tmp_path: Path) -> None:
    module = Scaled()
    outputs = ("float32", "int64")
    plan = make_golden.Plan([({"batch": 3}, 0)], {"batch": Range(3, 3)})
    made, _ = make_golden.make(module, lambda sizes, seed: (X, N), plan, tolerances.of_outputs(()), "cpu")
    others, notes = make_golden.in_precisions(
        made, module, {name: tolerances.BY_PRECISION[name] for name in ("bf16", "int8")}, outputs, "cpu"
    )
    golden.save(golden.Golden(made.cases, made.tolerance, others), tmp_path / "golden.safetensors")
    read = golden.read(tmp_path / "golden.safetensors")
    assert notes == ()
    assert read.of("fp32").tolerance == made.tolerance
    assert read.of("bf16").tolerance.rtol == 1.6e-2
    assert read.of("int8").tolerance.min_cosine == 0.995
    assert torch.equal(read.of("int8").cases[0].eager[0], made.cases[0].eager[0])
    half = read.of("bf16").cases[0].eager[0]
    assert half.dtype == torch.float32
    assert not torch.equal(half, made.cases[0].eager[0])
    with pytest.raises(ArtifactError, match="made without fp16"):
        read.of("fp16")


class Stubborn(torch.nn.Module):
    """Creates a float32 tensor, which cannot be multiplied by a half-precision one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ torch.ones(4, 4, dtype=torch.float32)


def test_a_model_that_does_not_run_in_a_precision_is_compared_with_float32(tmp_path: Path) -> None:
    module = Stubborn()
    made, _ = make_golden.make(
        module, lambda sizes, seed: (X,), make_golden.Plan([({}, 0)], {}), tolerances.of_outputs(()), "cpu"
    )
    others, notes = make_golden.in_precisions(
        made, module, {"bf16": tolerances.BY_PRECISION["bf16"]}, ("float32",), "cpu"
    )
    assert "does not run in bf16" in notes[0]
    assert others["bf16"].eager == ()
    assert module.linear.weight.dtype == torch.float32


def judge(got: torch.Tensor, reference: torch.Tensor, name: str = "logits") -> parity.OutputParity:
    tolerance = Tolerance(1e-4, 1e-5, 2.0, min_cosine=0.995)
    r = reference.double().numpy()
    return parity.compare(name, got.numpy(), reference.numpy(), r, tolerance, ("float32", "float32"))


def test_an_int8_layer_accepts_keyword_arguments(tmp_path: Path) -> None:
    """A model that is a single Linear layer is called this way, and callers may do so."""
    layer = torch.nn.Linear(8, 4).eval()
    quantized, note = _int8.dynamic(layer)
    x = torch.randn(2, 8)
    assert torch.allclose(quantized(input=x), layer(x), atol=0.1)
    traced = torch.jit.trace(quantized, x)
    assert torch.equal(traced(x), quantized(x))
    assert note == "1 linear layers in int8"


def test_outputs_with_a_high_cosine_are_quantized() -> None:
    torch.manual_seed(0)
    reference = torch.randn(4, 100)
    near, far = reference + 0.05 * torch.randn(4, 100), reference + 0.2 * torch.randn(4, 100)
    assert judge(near, reference, "hidden").verdict == "quantized"
    assert judge(far, reference, "hidden").verdict == "FAIL"
    assert judge(reference + 1e-6, reference).verdict == "rounding"


def test_scores_must_keep_a_clear_maximum() -> None:
    reference = torch.zeros(2, 400)
    reference[:, 0], reference[:, 1], reference[:, 2:] = 5.0, 3.0, torch.linspace(-2, 2, 398)
    swapped = reference.clone()
    swapped[1, 1] = 5.001
    assert judge(swapped, reference, "hidden").verdict == "quantized"
    lost = judge(swapped, reference)
    assert (lost.verdict, lost.reason) == ("FAIL", "rows whose clear winner changed: 1")
    reference[:, 1] = 4.9  # no longer clear, so the order does not matter
    swapped = reference.clone()
    swapped[1, 1] = 5.001
    assert judge(swapped, reference, "logits").verdict == "quantized"


def rows(manifest: Manifest) -> dict[str, Any]:
    return {v.name: v for v in manifest.variants}


def test_every_target_in_half_precision(run: Run) -> None:
    manifest, place = run("tiny:mlp", "trace@bf16,script@bf16,onnx@fp16,export@bf16,trace")
    found = rows(manifest)
    assert {name: row.reason for name, row in found.items() if row.status == "failed"} == {}
    assert manifest.golden is not None
    assert set(manifest.golden.tolerances) == {"bf16", "fp16"}
    assert found["trace"].parity.max_abs < found["trace@bf16"].parity.max_abs
    artifact = exporter.open_artifact(place / "trace@bf16.pt")
    assert artifact.contract.precision == "bf16"
    assert all(spec.dtype in ("float32", "int64") for spec in (*artifact.contract.inputs, *artifact.contract.outputs))
    assert sorted(p.name for p in place.glob("*@*")) == [
        "exported@bf16.pt2", "model@fp16.onnx", "script@bf16.pt", "trace@bf16.pt",
    ]  # fmt: skip


def test_int8_by_trace_and_onnx(run: Run) -> None:
    manifest, _ = run("tiny:mlp", "trace@int8,onnx@int8")
    found = rows(manifest)
    assert {name: row.reason for name, row in found.items() if row.status == "failed"} == {}
    assert found["trace@int8"].parity.verdict in ("quantized", "drift", "rounding")
    assert any("linear layers in int8" in note for note in found["trace@int8"].notes)
    assert found["trace@int8"].parity.max_abs > 1e-4, "it computes in int8"


@pytest.mark.parametrize("convolves", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_onnx_in_int8_for_cpus_whose_sums_saturate(
    narrow: bool, convolves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two products of 8 and 7 bits fit into the 16 bits in which an x86 CPU without VNNI adds them."""
    import onnx

    monkeypatch.setattr(environment, "adds_bytes_exactly", lambda: not narrow)
    layer = torch.nn.Conv2d(8, 16, 3) if convolves else torch.nn.Linear(64, 32)
    shape, made_shape = ((8, 6, 6), (16, 4, 4)) if convolves else ((64,), (32,))
    x = torch.randn(3, *shape)
    module = FlatModule(layer, flatten_inputs(layer, {"input": x})).eval()
    spec, output = (TensorSpec(n, "float32", ("batch", *s)) for n, s in (("input", shape), ("output", made_shape)))
    promise = Contract("layer", (spec,), (output,), {"batch": Range(1, 8)})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None, make_samples=lambda: ([], [(x,)]))
    made = targets.get("onnx").export(program, tmp_path / "model.onnx", Options(precision="int8"))
    weights = [onnx.numpy_helper.to_array(one) for one in onnx.load(tmp_path / "model.onnx").graph.initializer]
    largest = max(int(abs(one.astype(int)).max()) for one in weights if one.dtype == "int8" and one.ndim > 1)
    assert (largest <= 64) == narrow
    assert made.notes[-1] == (_int8.NARROW_WEIGHTS if narrow else onnx_target.WIDE)


class Shared(torch.nn.Module):
    """A layer that is called twice, one that is called three times, and an embedding whose weight a layer shares."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.twice, self.thrice = (
            torch.nn.Embedding(24, 16),
            torch.nn.Linear(16, 16),
            torch.nn.Linear(16, 16),
        )
        self.logits = torch.nn.Linear(16, 24)
        self.logits.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in (self.twice, self.twice, self.thrice, self.thrice, self.thrice):
            x = x + layer(x).tanh()
        return self.logits(x) + self.table(ids).sum(1, keepdim=True)


def test_onnx_in_int8_with_shared_weights(tmp_path: Path) -> None:
    """onnxruntime's quantizer transposes the weight of a Gemm for each node that uses it."""
    ids = torch.arange(24)
    module = FlatModule(Shared(), flatten_inputs(Shared(), {"ids": ids})).eval()
    specs = TensorSpec("ids", "int64", ("batch",)), TensorSpec("output", "float32", ("batch", 24))
    promise = Contract("shared", specs[:1], specs[1:], {"batch": Range(1, 32)})
    program = Program(promise, "cpu", lambda: module, lambda: (ids,), None, make_samples=lambda: ([], [(ids,)]))
    targets.get("onnx").export(program, tmp_path / "model.onnx", Options(precision="int8"))
    (given,) = targets.get("onnx").load(tmp_path / "model.onnx", Options()).run((ids,))
    assert torch.nn.functional.cosine_similarity(given.flatten(), module(ids)[0].flatten(), 0) > 0.999


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_int8_needs_weights_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to(dtype)
    x = torch.randn(3, 4, dtype=dtype)
    module = FlatModule(layer, flatten_inputs(layer, {"input": x})).eval()
    name = str(dtype).removeprefix("torch.")
    promise = Contract("m", (TensorSpec("input", name, (3, 4)),), (TensorSpec("output", name, (3, 4)),), {})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None, make_samples=lambda: ([], [(x,)]))
    for target in ("trace", "compile", "onnx"):
        with pytest.raises(ExportError, match=f"made from float32 weights, and the model has {name} ones") as raised:
            targets.get(target).export(program, tmp_path / "model", Options(precision="int8"))
        assert raised.value.remedy == "load the model in float32"


class Bags(torch.nn.Module):
    """Its ONNX has a loop whose body uses values of the graph around it, before a layer that is quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = torch.nn.EmbeddingBag(24, 16, mode="sum")
        self.logits = torch.nn.Linear(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.logits(self.bags(ids * 5 % 24))


def test_onnx_in_int8_with_a_loop(tmp_path: Path) -> None:
    """onnxruntime's quantizer moves the loop before the nodes that only its body depends on."""
    ids = torch.arange(24).reshape(4, 6)
    module = FlatModule(Bags(), flatten_inputs(Bags(), {"ids": ids})).eval()
    specs = TensorSpec("ids", "int64", ("batch", 6)), TensorSpec("output", "float32", ("batch", 8))
    promise = Contract("bags", specs[:1], specs[1:], {"batch": Range(1, 32)})
    program = Program(promise, "cpu", lambda: module, lambda: (ids,), None, make_samples=lambda: ([], [(ids,)]))
    targets.get("onnx").export(program, tmp_path / "model.onnx", Options(precision="int8"))
    (given,) = targets.get("onnx").load(tmp_path / "model.onnx", Options()).run((ids,))
    assert torch.nn.functional.cosine_similarity(given.flatten(), module(ids)[0].flatten(), 0) > 0.999


def test_a_weight_that_is_an_output_too_stays() -> None:
    import onnx

    model: Any = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 20]>
        net (float[2, 3] x) => (float[2, 2] w_transposed, float[2, 3] w)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}>
        { w_transposed = Gemm<transB = 1>(x, w) }
        """
    )
    x = torch.randn(2, 3).numpy()
    wanted = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    _int8_onnx._transpose_shared_weights(model.graph)
    assert sorted(one.name for one in model.graph.initializer) == ["w", "w_transposed_"]
    for given, output in zip(onnx.reference.ReferenceEvaluator(model).run(None, {"x": x}), wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(given), torch.from_numpy(output))


def test_weights_of_a_branch_are_transposed_once() -> None:
    import onnx

    model: Any = onnx.parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 20]>
        net (bool test, float[2, 3] x) => (float[2, 3] y, float[2, 3] v)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3, 3] own = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
        {
            y = If (test) <
                then_branch = then () => (float[2, 3] z) { z = Gemm<transB = 1>(x, w) },
                else_branch = otherwise () => (float[2, 3] u) { u = Gemm<transB = 1>(x, w) }>
            v = Gemm<transB = 1>(x, own)
        }
        """
    )
    usual = onnx.reference.ReferenceEvaluator(model)
    feed = {"x": torch.randn(2, 3).numpy()}
    wanted = [usual.run(None, feed | {"test": torch.tensor(test).numpy()}) for test in (True, False)]
    _int8_onnx._transpose_shared_weights(model.graph)
    assert sorted(one.name for one in model.graph.initializer) == ["own", "w_transposed"]
    changed = onnx.reference.ReferenceEvaluator(model)
    for test, outputs in zip((True, False), wanted, strict=True):
        for given, output in zip(changed.run(None, feed | {"test": torch.tensor(test).numpy()}), outputs, strict=True):
            torch.testing.assert_close(torch.from_numpy(given), torch.from_numpy(output))


def test_portable_packages_and_models_in_int8_are_for_cpus_whose_sums_saturate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "adds_bytes_exactly", lambda: True)
    assert [_int8.is_narrow(Options(portable=portable)) for portable in (False, True)] == [False, True]
    follow = [name for name in ("compile", "compile@int8", "onnx", "onnx@int8", "onnx@int8+fp32:a", "trace@int8")
              if targets.is_portable(*targets.parse(name))]  # fmt: skip
    assert follow == ["compile", "compile@int8", "onnx@int8", "onnx@int8+fp32:a"]


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")  # from inductor
@pytest.mark.skipif("avx2" not in environment.cpu_flags(), reason="portable packages are for CPUs with AVX2")
def test_portable_packages_in_int8_use_the_kernel_for_avx2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = torch.nn.Linear(64, 32), torch.randn(3, 64)
    module = FlatModule(layer, flatten_inputs(layer, {"input": x})).eval().requires_grad_(False)
    spec, output = TensorSpec("input", "float32", ("batch", 64)), TensorSpec("output", "float32", ("batch", 32))
    promise = Contract("layer", (spec,), (output,), {"batch": Range(1, 8)})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None, make_samples=lambda: ([], [(x,)]))
    path, options = tmp_path / "compile.pt2", Options(precision="int8", portable=True)
    targets.get("compile").export(program, path, options)
    assert "exporter_gemm_bytes" in packages.sources(path)
    assert "exporter_gemm_vnni" not in packages.sources(path)
    monkeypatch.setattr(environment, "adds_bytes_exactly", lambda: False)
    kinds = [options, Options(precision="int8"), Options(portable=True), Options()]
    assert [compiled._narrow_rows(one) for one in kinds] == [16, float("inf"), 0, 0]


def test_named_layers_stay_in_float(run: Run) -> None:
    import onnx

    manifest, place = run("blocks:block", "trace@int8,onnx@int8,trace@bf16", keep_float=("second",))
    found = rows(manifest)
    assert {name: row.reason for name, row in found.items() if row.status == "failed"} == {}
    assert "2 linear layers in int8" in found["trace@int8"].notes
    nodes = [node.op_type for node in onnx.load(str(place / "model@int8.onnx")).graph.node]
    assert (nodes.count("MatMulInteger"), nodes.count("Gemm") + nodes.count("MatMul")) == (2, 1)
    assert found["trace@bf16"].notes == ("float32 in second",)
    assert found["trace@bf16"].parity.verdict == "exact", "eager in the golden keeps the layer in float32 too"
    graph = torch.jit.load(str(place / "trace@bf16.pt")).inlined_graph
    constants = [
        node.t("value")
        for node in graph.findAllNodes("prim::Constant")
        if "value" in node.attributeNames() and node.kindOf("value") == "t"
    ]
    weights = {tuple(one.shape): one.dtype for one in constants if one.dim() == 2}
    assert {shape for shape, dtype in weights.items() if dtype == torch.float32} == {(32, 32)}
    assert manifest.request.keep_float == ("second",)
    assert "--keep-float second" in found["trace@int8"].reproduce


def test_a_variant_names_its_layers_in_float32(run: Run) -> None:
    names = [
        "trace@int8",
        "trace@int8+fp32:second",
        "trace@bf16",
        "trace@bf16+fp32:first+second",
        "onnx@int8+fp32:second",
    ]
    manifest, place = run("blocks:block", ",".join(names))
    found = rows(manifest)
    assert {name: row.reason for name, row in found.items() if row.status == "failed"} == {}
    assert set(names) <= found.keys()
    assert "3 linear layers in int8" in found["trace@int8"].notes
    assert "2 linear layers in int8" in found["trace@int8+fp32:second"].notes
    assert found["trace@int8+fp32:second"].quantized
    kept = found["trace@bf16+fp32:first+second"]
    assert kept.notes == ("float32 in first, second",)
    assert kept.parity.verdict == "exact", "eager in the golden keeps the layers in float32 too"
    assert kept.artifact.path == "trace@bf16+first+second.pt"
    assert targets.get("trace").read_contract(place / kept.artifact.path).precision == "bf16+fp32:first+second"
    sessions = {session.session: session.status for session in kept.sessions}
    assert sessions["native"] == "passed"
    assert "--targets trace@bf16+fp32:first+second" in kept.reproduce
    made = golden.read(place / "golden.safetensors")
    one, other = (made.of(name).cases[0].eager for name in ("bf16", "bf16+fp32:first+second"))
    assert not torch.equal(one[0], other[0])
    assert layout.target_of("trace@bf16+first+second.pt") == "trace"
    assert layout.target_of("trace@bf16+first+second.onnx") == ""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("trace+fp32:head", "there is no target 'trace.fp32'"),
        ("trace@fp32+fp32:head", "fp32 has no layers to keep in float32"),
        ("trace@int8+bf16:head", "does not name layers to keep in float32"),
        ("trace@int8+fp32:", "does not name layers to keep in float32"),
        ("trace@int8+fp32:a/b", "does not name layers to keep in float32"),
        ("script@int8+fp32:head", "target script has no precision 'int8'"),
    ],
)
def test_layers_in_float32_that_cannot_be_named(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        targets.parse(text)


def test_long_names_of_layers_are_hashed_in_file_names() -> None:
    layers = "+".join(f"encoder.layer.{number}" for number in range(12))
    name = Variant("trace", "", f"int8+fp32:{layers}").artifact
    assert len(name) < 40
    assert layout.target_of(name) == "trace"
    assert Variant("trace", "", f"int8+fp32:{layers}+head").artifact != name
    assert precisions.mixed("int8+fp32:a", ("b", "a")) == "int8+fp32:a+b"


def test_named_layers_stay_in_float_in_a_package() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"model": torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))})
    model.forward = lambda x: (model["model"](x),)  # type: ignore[method-assign, assignment]
    x = torch.randn(4, 8)
    for kept, count in (((), 2), (("0",), 1)):
        graph = torch.export.export(model.eval(), (x,)).module(check_guards=False)
        quantized = _int8.pt2e(graph, [(x,)], kept=kept)
        assert sum("dequantize_per_channel" in str(n.target) for n in quantized.inner.graph.nodes) == count


def test_a_layer_that_the_model_lacks_is_refused(run: Run) -> None:
    manifest, _ = run("blocks:block", "trace@int8,onnx@int8,trace@fp16", keep_float=("secnd",))
    for row in rows(manifest).values():
        assert row.reason == "the model has no layer secnd that could be kept in float"
        assert row.remedy == "did you mean second?"


def test_compile_in_half_precision_and_int8(run: Run) -> None:
    manifest, place = run("tiny:mlp", "compile@bf16,compile@int8")
    found = rows(manifest)
    assert {name: row.reason for name, row in found.items() if row.status == "failed"} == {}
    assert found["compile@int8"].parity.max_abs > 1e-4, "it computes in int8"
    assert exporter.open_artifact(place / "compile@int8.pt2").contract.precision == "int8"


class Wide(torch.nn.Module):
    """13 MB of weights in two Linear layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(512, 3072), torch.nn.Linear(3072, 512)
        self.norm = torch.nn.LayerNorm(512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.second(torch.relu(self.first(x))))


def program_of(module: torch.nn.Module, x: torch.Tensor) -> Program:
    x_spec, y_spec = (TensorSpec(name, "float32", ("batch", 5, 512)) for name in "xy")
    contract = Contract("wide", (x_spec,), (y_spec,), {"batch": Range(1, 8)})
    flat = FlatModule(module, flatten_inputs(module, (x,))).eval().requires_grad_(False)
    return Program(contract, "cpu", lambda: flat, lambda: (x,), None)


def test_int8_packages_for_a_gpu_quantize_only_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test compiles the same graph for the CPU."""
    monkeypatch.setattr("exporter.targets.compile._build", lambda options: machine_code.native())
    module, path, target = Wide().eval(), tmp_path / "compile@int8.pt2", targets.get("compile")
    program = program_of(module, torch.randn(2, 5, 512))
    with inductor.patch({"aot_inductor.compile_wrapper_opt_level": "O1"}):  # the size includes the code
        exported = target.export(program, path, Options(precision="int8", device="cuda"))
    assert exported.ops == ()
    assert exported.notes == ("weights in int8, computed in bfloat16",)
    assert module.first.weight.dtype == torch.float32, "the model is unchanged"
    size = sum(t.numel() * t.element_size() for t in module.parameters())
    assert path.stat().st_size - 2e6 < size / 3.8, "apart from the code of the package"
    run = target.load(path, Options()).run
    for batch in (1, 3, 8):
        x = torch.randn(batch, 5, 512)
        (got,) = run((x,))
        want = module(x)
        cosine = torch.nn.functional.cosine_similarity(got.flatten().double(), want.flatten().double(), 0)
        assert 0.995 < cosine < 0.9999999
        assert (got.dtype, got.shape) == (torch.float32, want.shape)


@pytest.mark.parametrize("name", ["trace", "onnx", "compile"])
def test_int8_that_a_gpu_does_not_support(name: str, tmp_path: Path) -> None:
    """torch and onnxruntime have no CUDA kernels for quantized layers; torchao needs a Linear layer."""
    module = torch.nn.Conv1d(5, 5, 1).to("meta")
    program = program_of(module, torch.randn(2, 5, 512))
    with pytest.raises(ExportError) as raised:
        targets.get(name).export(program, tmp_path / "artifact", Options(precision="int8", device="cuda"))
    wanted = "choose bf16 or fp16" if name == "compile" else "choose compile@int8"
    assert wanted in raised.value.remedy


AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}  # libtorch as on a CPU without AVX-512


@pytest.mark.skipif(platform.machine() != "x86_64" or not NATIVE, reason="needs an x86-64 and exporter-run")
def test_portable_half_precision_is_correct_on_an_older_cpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, place = run("tiny:mlp", "compile@bf16", portable=True, timeout=600.0)
    assert {row.name: row.reason for row in manifest.variants if row.status == "failed"} == {}
    for name, value in AVX2.items():
        monkeypatch.setenv(name, value)
    command = [str(environment.find_runner()), "verify", str(place / "compile@bf16.pt2")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_int8_failure_reports_the_cosine() -> None:
    found = judge(torch.randn(4, 100), torch.randn(4, 100), "hidden")
    assert found.reason.startswith("cosine ")
    assert found.reason.endswith("the minimum is 0.995")


def test_tf32_needs_a_gpu(run: Run) -> None:
    with pytest.raises(UsageError, match="NVIDIA"):
        run("tiny:mlp", "trace@tf32")


def test_int8_exports_strictly_if_a_graph_lacks_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch 2.11, torchao finds no layers in a graph that was not exported strictly."""
    module, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    plain = torch.export.export(module, (x,))
    asked: list[bool] = []

    def quantize(*_: object) -> str:
        if not asked:
            raise _int8.NothingToQuantize("nothing", "")
        return "quantized"

    def export_program(*_: object, strict: bool) -> torch.export.ExportedProgram:
        asked.append(strict)
        return plain

    monkeypatch.setattr(_int8, "pt2e", quantize)
    monkeypatch.setattr(capture, "export_program", export_program)
    known = {"module": module, "example": (x,), "samples": [(x,)], "exported": plain}
    program = SimpleNamespace(part_of=None, function=None, capture=lambda one: one, **known)
    found: object = compiled._graph(program, Options(precision="int8"))  # type: ignore[arg-type]
    assert (found, asked) == ("quantized", [True])
