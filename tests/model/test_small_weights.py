"""Weights stored in fewer bytes: which, how they are rounded, what each route makes of them, how it is judged."""

from __future__ import annotations

import contextlib
import copy
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import exporter
from exporter import targets
from exporter.core import precisions, tolerances
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError, ExportError, UsageError
from exporter.core.size_range import Range
from exporter.evidence import golden, make_golden, parity
from exporter.model import precision, small_weights
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.model.tensors import Run, Tensors
from exporter.targets import Options
from exporter.workers.session import server

BOTH = pytest.mark.parametrize("name", precisions.SMALL_WEIGHTS)


class Tied(torch.nn.Module):
    """A small decoder: the embedding's weight is that of the last layer too. `free` is used outside its layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.middle = torch.nn.Embedding(400, 128), torch.nn.Linear(128, 128)
        self.free, self.head = torch.nn.Linear(128, 128, bias=False), torch.nn.Linear(128, 400, bias=False)
        self.table.weight = self.head.weight
        self.tiny = torch.nn.Linear(128, 4)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.middle(self.table(ids)))
        x = x + torch.nn.functional.linear(x, self.free.weight)
        return self.head(x), self.tiny(x)


IDS = torch.arange(10).reshape(2, 5) * 37


def test_float16_is_the_nearest_and_int8_within_half_a_step() -> None:
    weight = torch.randn(50, 100) * torch.logspace(-3, 3, 50)[:, None]
    weight[7] = 0
    half, none = small_weights.store(weight, "fp16w")
    assert half.dtype == torch.float16
    assert none is None
    assert torch.equal(half, weight.half())
    small, scale = small_weights.store(weight, "int8w")
    assert small.dtype == torch.int8
    assert scale is not None
    assert scale.dtype == torch.float32
    assert bool(((small * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all())
    assert bool((small.abs().amax(dim=1) == 127).sum() == 49), "each row uses its whole range, except the one of zeros"


@BOTH
def test_layers_share_their_stored_weight_and_get_their_own_back(name: str) -> None:
    module = Tied().eval()
    keys, before = list(module.state_dict()), module(IDS)
    with precision.computing(module, name, ()) as stored:
        kinds = [type(m) for m in (module.table, module.middle, module.head, module.tiny)]
        assert isinstance(module.table, small_weights.StoredEmbedding)
        assert isinstance(module.head, small_weights.StoredLinear)
        assert [kind.__name__ for kind in kinds] == ["Embedding", "Linear", "Linear", "Linear"]
        assert kinds[3] is torch.nn.Linear, "nothing is saved there"
        assert module.table.small is module.head.small
        after = stored(IDS)
        said = small_weights.described(stored, name)
    assert said.startswith("weights of 3 linear layers and 1 embedding in ")
    assert 1e-6 < float((after[0] - before[0]).detach().abs().max()) < 0.1
    assert list(module.state_dict()) == keys
    assert module.table.weight is module.head.weight
    assert torch.equal(module(IDS)[0], before[0])


def test_the_outputs_are_those_of_the_rounded_weights() -> None:
    module, rounded = Tied().eval(), Tied().eval()
    for layer in (rounded.middle, rounded.free, rounded.head):
        small, scale = small_weights.store(layer.weight, "int8w")
        assert scale is not None
        layer.weight.data = small * scale[:, None]
    rounded.table.weight = rounded.head.weight
    with precision.computing(module, "int8w", ()) as stored:
        for got, wanted in zip(stored(IDS), rounded(IDS), strict=True):
            torch.testing.assert_close(got, wanted)


class Own(torch.nn.Linear):
    """A subclass, whose forward may do anything with its weight."""


def test_layers_that_stay_as_they_are() -> None:
    huge = torch.nn.Linear(128, 128)
    huge.weight.data[0, 0] = 1e5  # above float16's range
    clipped = torch.nn.Embedding(100, 128, max_norm=1.0)  # it writes to its weight
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(128, 128))
    layers = [Own(128, 128), huge, clipped, normed, torch.nn.Linear(128, 128).double(), torch.nn.Linear(127, 129)]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(128, 128))
    small_weights.apply(module, "fp16w")
    assert [path for path, _ in small_weights.stored(module)] == ["6"]


@BOTH
def test_a_model_without_such_layers_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match="no linear layer or embedding with 16384 float32 weights") as raised:
        small_weights.apply(torch.nn.Sequential(torch.nn.Conv1d(128, 128, 3), torch.nn.Linear(8, 8)), name)
    assert raised.value.remedy == "choose fp32, fp16 or int8"


def test_layers_kept_in_float32_keep_a_shared_weight_too() -> None:
    whole = flat()
    module = whole.model
    own = module.head.weight
    small_weights.apply(whole, "int8w", ("table",))
    assert type(module.table) is torch.nn.Embedding
    assert module.table.weight is own
    assert isinstance(module.head, small_weights.StoredLinear)
    with pytest.raises(ExportError, match="no layer heed"):
        small_weights.apply(flat(), "int8w", ("heed",))


def test_names() -> None:
    assert precisions.is_valid("int8w+fp32:head")
    assert targets.Variant("trace", "", "int8w+fp32:head").artifact == "trace@int8w+head.pt"
    for text in ("script@fp16w", "compile:default@int8w"):
        with pytest.raises(UsageError, match="has no precision"):
            targets.parse(text)


# How it is judged.


def made(module: torch.nn.Module, name: str) -> golden.Golden:
    plan = make_golden.Plan([({"batch": 2}, 0)], {"batch": Range(2, 2)})
    found, _ = make_golden.make(module, lambda sizes, seed: (IDS,), plan, tolerances.of_outputs(()), "cpu")
    others, notes = make_golden.in_precisions(found, module, {name: tolerances.BY_PRECISION[name]}, (), "cpu")
    assert notes == ()
    return replace(found, precisions=others)


def judged(run: Run, given: golden.Golden) -> list[parity.OutputParity]:
    judge = server.Judge(given, ("logits", "tiny"), None)
    return judge.compare(run(given.cases[0].inputs), given.cases[0])


def scaled(module: Tied) -> None:
    """The scale of one layer is 5% too large."""
    layer = module.middle
    if layer.scale is None:
        layer.small.mul_(1.05)
    else:
        layer.scale.mul_(1.05)


def exchanged(module: Tied) -> None:
    """Two rows of one weight have changed places."""
    module.head.small[[3, 74]] = module.head.small[[74, 3]]


def neighboured(module: Tied) -> None:
    """One row of the embedding that is looked up is its neighbour's."""
    module.table.small[37] = module.table.small[38].clone()


def coarse(module: Tied) -> None:
    """Weights are rounded a second time, to a third of the levels."""
    small = module.free.small
    small.copy_((small.float() / 3).round() * 3 if small.dtype == torch.int8 else (small * 127).round() / 127)


@BOTH
def test_only_the_stored_weights_pass(name: str, tmp_path: Path) -> None:
    module = Tied().eval()
    golden.save(made(module, name), tmp_path / "golden.safetensors")
    given = golden.read(tmp_path / "golden.safetensors").of(name)
    assert given.cases[0].stored[0].dtype == torch.float64
    with precision.computing(module, name, ()) as stored:
        first, second = judged(lambda inputs: stored(*inputs), given)
    assert first.verdict == "quantized"
    assert second.verdict in ("rounding", "quantized")
    original = judged(lambda inputs: module(*inputs), given)[0]
    assert original.verdict == "FAIL", "the original weights are not what is stored"


@BOTH
@pytest.mark.parametrize("defect", [scaled, exchanged, neighboured, coarse], ids=lambda one: one.__name__)
def test_a_planted_defect_fails(name: str, defect: Callable[[Tied], None]) -> None:
    module = Tied().eval()
    given = made(module, name).of(name)
    wrong = copy.deepcopy(module)
    small_weights.apply(wrong, name)
    with torch.no_grad():
        defect(wrong)
    found = judged(lambda inputs: wrong(*inputs), given)[0]
    assert found.verdict == "FAIL"
    assert "not what the stored weights give" in found.reason or "cosine" in found.reason


def test_weights_that_cost_too_much_fail() -> None:
    module = Tied().eval()
    with torch.no_grad():
        module.table.weight[:, 0] = 0
        module.middle.weight[:, 0] = 100  # takes the range of int8 in each row, and does nothing
    given = made(module, "int8w").of("int8w")
    with precision.computing(module, "int8w", ()) as stored:
        found = judged(lambda inputs: stored(*inputs), given)[0]
    assert found.verdict == "FAIL"
    assert found.cause == "too-coarse"


def test_a_golden_without_the_outputs_of_stored_weights_is_refused() -> None:
    given = made(Tied().eval(), "int8w")
    lost = {"int8w": replace(given.precisions["int8w"], stored=())}
    with pytest.raises(ArtifactError, match="lacks the outputs of the weights in int8w"):
        replace(given, precisions=lost).of("int8w")


def test_eager_moved_to_other_weights_keeps_its_own_error() -> None:
    eager, reference = np.float32([1.5, np.inf, 3]), np.float64([1.25, np.inf, 3])
    found = parity._moved(eager, reference, np.float64([2, np.inf, 4]))
    assert found.dtype == np.float32
    assert found.tolist() == [2.25, np.inf, 4]
    assert parity._moved(np.int64([1]), np.int64([1]), np.int64([2])).tolist() == [1]


# What each route makes of them.


def flat() -> FlatModule:
    module = Tied()
    return FlatModule(module, flatten_inputs(module, {"ids": IDS})).eval()


@contextlib.contextmanager
def program(name: str) -> Iterator[Program]:
    outputs = tuple(TensorSpec(n, "float32", ("batch", "length", size)) for n, size in (("logits", 400), ("tiny", 4)))
    contract = Contract(
        "tied", (TensorSpec("ids", "int64", ("batch", "length")),), outputs,
        {"batch": Range(1, 8), "length": Range(1, 16)}, precision=name,
    )  # fmt: skip
    yield Program(contract, "cpu", lambda: precision.cast(flat(), name, ()), lambda: (IDS,), None)


def exported(target: str, name: str, folder: Path) -> tuple[Path, Run]:
    route, options = targets.get(target), Options(precision=name, threads=2)
    path = folder / route.artifact
    with program(name) as given:
        route.export(given, path, options)
    return path, route.load(path, options).run


SIZES = ((1, 1), (2, 5), (3, 16), (8, 7))


def reference(name: str) -> Callable[[torch.Tensor], Tensors]:
    module = Tied().eval()
    small_weights.apply(module, name)
    module.double()
    return lambda ids: module(ids)


def agrees(run: Run, name: str, sizes: Sequence[tuple[int, int]] = SIZES) -> bool:
    """Return whether an artifact gives the outputs of the stored weights in float64, to float32's accuracy."""
    wanted = reference(name)
    for size in sizes:
        ids = torch.randint(0, 400, size)
        for got, exact in zip(run((ids,)), wanted(ids), strict=True):
            if got.dtype != torch.float32 or float((got - exact).detach().abs().max()) > 1e-5:
                return False
    return True


BYTES = 4 * (400 * 128 + 2 * 128 * 128)  # of the weights in float32


@BOTH
@pytest.mark.parametrize("target", ["export", "onnx", "trace"])
def test_every_route_stores_them_and_computes_in_float32(target: str, name: str, tmp_path: Path) -> None:
    path, run = exported(target, name, tmp_path)
    assert agrees(run, name)
    assert not agrees(run, "int8w" if name == "fp16w" else "fp16w"), "the comparison tells the two apart"
    held = BYTES // (2 if name == "fp16w" else 4)
    extra = 0
    if target == "trace":  # FBGEMM has its own copy of a shared weight, and what is used outside a layer is unpacked
        extra = 400 * 128 * (2 if name == "fp16w" else 1) + 4 * 128 * 128
    assert path.stat().st_size < held * 1.1 + extra + 60_000, "with the graph"


@BOTH
def test_packages_store_them_once(name: str, tmp_path: Path) -> None:
    path, run = exported("compile", name, tmp_path)
    assert agrees(run, name)
    with zipfile.ZipFile(path) as archive:
        blob = sum(one.file_size for one in archive.infolist() if one.filename.endswith("_weights.blob"))
    width = 2 if name == "fp16w" else 1
    tied = 400 * 128 * width  # the template has its own layout of a weight that an embedding has too
    unpacked = 4 * 128 * 128 * 2  # of `free`, used outside its layer, packed or not
    assert blob < 2 * tied + 128 * 128 * width + unpacked + 16_000


def test_onnxruntime_keeps_int8_weights_and_rounds_no_activation(tmp_path: Path) -> None:
    path, _ = exported("onnx", "int8w", tmp_path)
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    optimized = onnx.load(str(tmp_path / "optimized.onnx")).graph
    kinds = {node.op_type for node in optimized.node}
    assert "DequantizeLinear" in kinds
    assert not kinds & {"MatMulNBits", "MatMulInteger", "DynamicQuantizeLinear", "QLinearMatMul"}
    int8 = sum(np.prod(one.dims) for one in optimized.initializer if one.data_type == onnx.TensorProto.INT8)
    assert int8 == 400 * 128 + 2 * 128 * 128


def test_the_products_of_a_trace_are_packed_again_when_it_is_loaded(tmp_path: Path) -> None:
    path, _ = exported("trace", "int8w", tmp_path)
    loaded = torch.jit.load(str(path))
    packed = [one for name, one in loaded.named_modules() if name.endswith("packed_product")]
    assert len(packed) == 3 - 1, "of the layers that are called: `free` is not"
    again = tmp_path / "again.pt"
    loaded.save(str(again))
    assert torch.equal(torch.jit.load(str(again))(IDS)[0], loaded(IDS)[0])


class Remembers(torch.nn.Module):
    """Keeps its last output, which a later call reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(128, 128)
        self.register_buffer("last", torch.zeros(1, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(self.linear(x[:1]) + 0.5 * self.last)
        self.last.copy_(found)
        return found


def test_sequences_of_calls_with_stored_weights(tmp_path: Path) -> None:
    bundle = exporter.export(
        Remembers(), {"x": torch.randn(2, 128)}, targets="trace", precision="fp16w,int8w", out=tmp_path / "bundle",
        time_budget=0.1,
    )  # fmt: skip
    found = {variant.name: variant for variant in bundle.manifest.variants}
    for name in ("trace@fp16w", "trace@int8w"):  # the second starts from the initial state too
        assert found[name].status == "passed", found[name].reason
        assert any("computed in float32" in note for note in found[name].notes)
