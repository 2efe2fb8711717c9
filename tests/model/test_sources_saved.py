"""Exporting saved programs again: what is read from them, the sizes that they accept, and refused files."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import request_for
from torch import Tensor, nn

from exporter.core import contract_files, dimensions
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.dimensions import LARGEST_BATCH
from exporter.core.errors import RecipeError
from exporter.core.json_codec import to_json
from exporter.core.records import Manifest
from exporter.core.size_range import Range
from exporter.evidence import golden
from exporter.model import examples, flattening, recipes, tensor_files
from exporter.model.sources import _saved_inputs, saved
from exporter.runs import pipeline

# torch.jit.script warns about an annotation in torch.fx.GraphModule, which is not ours.
pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")

Dim = torch.export.Dim


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = self.table(ids) * mask.unsqueeze(-1)
        return {"hidden": hidden, "pooled": hidden.mean(1)}


class Fixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(3, 4).sum(1)


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


def load(path: Path, inputs: Path | None = None) -> Any:
    return recipes.load(recipes.find(str(path), str(inputs or "")))


def save_scripted(module: nn.Module, folder: Path, inputs: Any = None) -> tuple[Path, Path | None]:
    torch.jit.save(torch.jit.script(module.eval()), str(folder / "model.pt"))
    if inputs is None:
        return folder / "model.pt", None
    torch.save(inputs, folder / "inputs.pt")
    return folder / "model.pt", folder / "inputs.pt"


def save_exported(path: Path, module: nn.Module, args: tuple[Any, ...], shapes: Any, **more: Any) -> Path:
    with torch.no_grad():
        program = torch.export.export(module.eval(), args, dynamic_shapes=shapes, **more)
    torch.export.save(program, path)
    return path


def ids_and_mask() -> dict[str, Tensor]:
    return {"ids": torch.randint(0, 11, (3, 5)), "mask": torch.ones(3, 5)}


# TorchScript.


class Plain(nn.Module):
    """The part of Tokens that TorchScript supports."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.table(ids) * mask.unsqueeze(-1)
        return hidden, hidden.mean(1)


@pytest.mark.parametrize("as_tuple", [False, True])
def test_the_batch_of_inputs_is_dynamic(tmp_path: Path, as_tuple: bool) -> None:
    given = ids_and_mask()
    recipe = load(*save_scripted(Plain(), tmp_path, tuple(given.values()) if as_tuple else given))
    assert recipes.example_sizes(recipe.inputs) == {"batch": 3}
    assert recipe.sizes == {"batch": (1, 64)}
    assert torch.equal(recipe.inputs()["ids"], given["ids"])
    made = recipe.inputs(batch=7)
    assert [made[name].shape for name in ("ids", "mask")] == [(7, 5), (7, 5)]
    hidden, pooled = recipe.load("auto")(**made)
    assert (hidden.shape, pooled.shape) == ((7, 5, 4), (7, 4))


@pytest.mark.parametrize(
    ("module", "reason"),
    [(Fixed(), "does not run at batch 4"), (Constant(), "outputs have the same shapes at batch 4 as at 3")],
)
def test_a_batch_fixed_by_the_program(tmp_path: Path, module: nn.Module, reason: str) -> None:
    recipe = load(*save_scripted(module, tmp_path, torch.randn(3, 4)))
    assert recipes.example_sizes(recipe.inputs) == {}
    assert recipe.inputs()["x"].shape == (3, 4)
    with pytest.warns(UserWarning, match=reason):
        recipe.load("auto")


class Carries(nn.Module):
    """Its batch size is the second dimension of the state."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(x.mean(1, keepdim=True) + state[0])
        return hidden, torch.stack([hidden, state[1]])


def saved_carries(folder: Path) -> tuple[str, str]:
    path, inputs = save_scripted(Carries(), folder, {"x": torch.randn(1, 8), "state": torch.randn(2, 1, 3)})
    return str(path.rename(folder / "vad.jit")), str(inputs)


def test_a_batch_in_another_dimension_is_not_reported_as_fixed(tmp_path: Path) -> None:
    recipe = recipes.load(recipes.find(*saved_carries(tmp_path)))
    said = "with dimension 0 of x as the batch, .* if the batch is another dimension, give --dim batch=INPUT:AXIS"
    with pytest.warns(UserWarning, match=said):
        recipe.load("auto")


def test_dimensions_of_torchscript_by_name(tmp_path: Path) -> None:
    source = recipes.find(*saved_carries(tmp_path))
    recipe = recipes.load(recipes.with_dims(source, ["batch=state:1", "batch=x:0", "samples=x:1:4..160"]))
    assert recipe.sizes == {"samples": (4, 160), "batch": (1, 64)}
    made = recipe.inputs(batch=3, samples=5)
    assert (made["x"].shape, made["state"].shape) == ((3, 5), (2, 3, 3))
    with torch.no_grad():
        assert recipe.load("auto")(**made)[1].shape == (2, 3, 3)
    with pytest.raises(RecipeError, match="no input has that dimension") as raised:
        recipes.load(recipes.with_dims(source, ["batch=hidden:0"]))
    assert "x with 2, state with 3" in raised.value.remedy


def test_dimensions_of_an_exported_program_by_name(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=9)
    path = save_exported(
        tmp_path / "m.pt2", Tokens(), (*ids_and_mask().values(),), ({0: batch, 1: Dim.AUTO}, {0: batch, 1: Dim.AUTO})
    )
    source = recipes.find(str(path))
    recipe = recipes.load(recipes.with_dims(source, ["length=mask:1:3..20", "rows=ids:0"]))
    assert recipe.sizes == {"rows": (1, 9), "length": (3, 20)}
    assert recipe.inputs(rows=2, length=6)["ids"].shape == (2, 6)
    for dim, message in (
        ("rows=ids:0:1..10", "the program accepts 1 to 9 there"),
        ("rows=x:0", "no input has that dimension"),
    ):
        with pytest.raises(RecipeError, match=message):
            recipes.load(recipes.with_dims(source, [dim]))
    with pytest.raises(RecipeError, match="two sizes of the program would be named batch"):
        recipes.load(recipes.with_dims(source, ["batch=ids:1"]))
    fixed = save_exported(tmp_path / "fixed.pt2", Constant(), (torch.randn(3, 4),), None)
    with pytest.raises(RecipeError, match="dimension 0 of x is fixed at 3"):
        recipes.load(recipes.with_dims(recipes.find(str(fixed)), ["batch=x:0"]))


def test_dimensions_of_a_contract_by_another_name(made_bundle: Path) -> None:
    source = recipes.find(str(made_bundle / "trace.pt"))
    recipe = recipes.load(recipes.with_dims(source, ["rows=mask:0:2..3"]))
    assert recipe.sizes == {"rows": (2, 3), "sequence": (1, 6)}
    assert recipes.example_sizes(recipe.inputs)["rows"] in (2, 3)
    assert recipe.inputs(rows=3)["ids"].shape[0] == 3
    with pytest.raises(RecipeError, match="the program accepts 1 to 4 there"):
        recipes.load(recipes.with_dims(source, ["rows=mask:0:2..5"]))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, r"records only the names of its inputs \(ids, mask\)"),
        ({"ids": torch.ones(1, 2)}, "does not fit the program: mask"),
        ({"ids": torch.ones(1), "mask": torch.ones(1), "x": torch.ones(1)}, "does not fit the program: x"),
        ((torch.ones(1),) * 3, "does not fit the program: ids, mask, 0, 1, 2"),
        ({"ids": torch.ones(1, 2), "mask": torch.ones(1, 2)}, "does not run on --inputs: .*[Ii]nd"),
    ],
)
def test_wrong_inputs(tmp_path: Path, inputs: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as raised:
        load(*save_scripted(Plain(), tmp_path, inputs))
    assert raised.value.remedy
    if inputs is None:
        assert "save_file({" in raised.value.remedy


def test_inputs_run_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    with pytest.raises(RecipeError, match=r"--inputs .* cannot be read"):
        load(*save_scripted(Plain(), tmp_path, Trap()))
    assert not (tmp_path / "sprung").exists()


def test_random_weights_are_refused(tmp_path: Path) -> None:
    recipe = load(*save_scripted(Plain(), tmp_path, ids_and_mask()))
    with pytest.raises(RecipeError, match="has its own weights"):
        recipe.load("random")
    assert recipe.load("auto").exporter_weights == "the file's"


# exporter's own artifacts.


@pytest.mark.parametrize("artifact", ["trace.pt", "script.pt", "exported.pt2"])
def test_a_bundle_artifact_keeps_its_contract(made_bundle: Path, artifact: str) -> None:
    recipe = load(made_bundle / artifact)
    assert recipe.sizes == {"batch": (1, 4), "sequence": (1, 6)}
    case = golden.read(made_bundle / "golden.safetensors").cases[0]
    assert recipes.example_sizes(recipe.inputs) == dict(zip(("batch", "sequence"), case.inputs[0].shape, strict=True))
    assert list(recipe.inputs()) == ["ids", "mask"]
    assert recipe.inputs(batch=3, sequence=5)["ids"].shape == (3, 5)
    names, outputs = flattening.output_leaves(
        recipe.load("auto")(**dict(zip(("ids", "mask"), case.inputs, strict=True)))
    )
    assert names == ("hidden", "pooled", "best")
    assert all(torch.equal(a, b) for a, b in zip(outputs, case.eager, strict=True))


def test_an_artifact_without_a_bundle_reports_unknown_values(made_bundle: Path, tmp_path: Path) -> None:
    lone = Path(shutil.copy(made_bundle / "trace.pt", tmp_path / "trace.pt"))
    with pytest.raises(RecipeError, match="the valid values of ids are unknown") as raised:
        load(lone)
    assert "golden.safetensors" in raised.value.remedy
    tensor_files.save({"mask": torch.ones(2, 3), "ids": torch.full((2, 3), 7)}, tmp_path / "inputs.safetensors")
    recipe = load(lone, tmp_path / "inputs.safetensors")
    assert recipes.example_sizes(recipe.inputs) == {"batch": 2, "sequence": 3}
    assert recipe.inputs(batch=4)["ids"].eq(7).all()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ids": torch.full((2, 3), 7)}, "no tensor mask"),
        ((torch.ones(2, 3), torch.ones(2, 3)), "ids: dtype float32, the contract wants int64"),
        ((torch.full((2, 9), 7), torch.ones(2, 9)), "sequence is 9, the contract allows 1 to 6"),
    ],
)
def test_inputs_that_violate_the_contract(made_bundle: Path, tmp_path: Path, inputs: Any, message: str) -> None:
    torch.save(inputs, tmp_path / "inputs.pt")
    with pytest.raises(RecipeError, match=message):
        load(made_bundle / "trace.pt", tmp_path / "inputs.pt")


def test_files_of_tensors_get_their_mode_from_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        tensor_files.save({"x": torch.ones(2)}, tmp_path / "golden.safetensors")
    finally:
        os.umask(previous)
    assert (tmp_path / "golden.safetensors").stat().st_mode & 0o777 == 0o640


def test_a_foreign_golden_is_ignored(made_bundle: Path, tmp_path: Path) -> None:
    lone = Path(shutil.copy(made_bundle / "trace.pt", tmp_path / "trace.pt"))
    tensor_files.save({"cases.0.inputs.0": torch.ones(2)}, tmp_path / "golden.safetensors", {"cases": [{"inputs": 1}]})
    with pytest.raises(RecipeError, match="the valid values of ids"):
        load(lone)


def test_floating_inputs_are_generated(tmp_path: Path, run: Any) -> None:
    _, out = run("tiny:mlp")
    lone = Path(shutil.copy(out / "trace.pt", tmp_path / "lone.pt"))
    recipe = load(lone)
    assert recipe.sizes == {"batch": (1, 8)}
    assert recipe.inputs(batch=5)["x"].shape == (5, 4)


# ExportedPrograms.


def test_ranges_and_names_of_an_exported_program(tmp_path: Path) -> None:
    batch = Dim("batch", min=2, max=9)
    path = save_exported(
        tmp_path / "m.pt2", Tokens(), (*ids_and_mask().values(),), ({0: batch, 1: Dim.AUTO}, {0: batch, 1: Dim.AUTO})
    )
    recipe = load(path)
    least = 2 if recipe.sizes["ids_dim1"][0] == 2 else 1
    assert recipe.sizes == {"batch": (2, 9), "ids_dim1": (least, 512)}
    assert recipes.example_sizes(recipe.inputs) == {"batch": 3, "ids_dim1": 5}
    made = recipe.inputs(batch=4, ids_dim1=8)
    assert {name: tensor.shape for name, tensor in made.items()} == {"ids": (4, 8), "mask": (4, 8)}
    assert made["ids"].max() < 11
    assert {name: t.shape for name, t in recipe.load("auto")(**made).items()} == {"hidden": (4, 8, 4), "pooled": (4, 4)}


def test_an_unbounded_batch_is_capped(tmp_path: Path) -> None:
    path = save_exported(tmp_path / "m.pt2", Constant(), (torch.randn(3, 4),), ({0: Dim("batch", min=1)},))
    assert load(path).sizes == {"batch": (1, LARGEST_BATCH)}


class Nested(nn.Module):
    def forward(self, x: Tensor, flag: bool, *, more: dict[str, Tensor], missing: Tensor | None = None) -> Tensor:
        return x + more["y"][::2] if flag and missing is None else x


def test_keywords_nested_inputs_constants_and_derived_sizes(tmp_path: Path) -> None:
    half = Dim("half", min=1, max=16)
    path = save_exported(
        tmp_path / "m.pt2",
        Nested(),
        (torch.randn(3, 4), True),
        {"x": {0: half}, "flag": None, "more": {"y": {0: 2 * half}}, "missing": None},
        kwargs={"more": {"y": torch.randn(6, 4)}, "missing": None},
    )
    recipe = load(path)
    assert recipe.sizes == {"batch": (1, 16)}
    made = recipe.inputs(batch=5)
    assert (made["x"].shape, made["more"]["y"].shape, made["flag"], made["missing"]) == ((5, 4), (10, 4), True, None)
    torch.testing.assert_close(recipe.load("auto")(**made), made["x"] + made["more"]["y"][::2])


def test_an_exported_program_without_example_inputs(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=8)
    with torch.no_grad():
        program = torch.export.export(Tokens().eval(), (*ids_and_mask().values(),), dynamic_shapes=({0: batch},) * 2)
    program.example_inputs = None
    torch.export.save(program, tmp_path / "m.pt2")
    recipe = load(tmp_path / "m.pt2")
    made = recipe.inputs(batch=2)
    assert (made["ids"].shape, made["ids"].dtype, made["mask"].dtype) == ((2, 5), torch.int64, torch.float32)
    assert not made["ids"].any()
    recipe.load("auto")(**made)


def test_inputs_replace_an_exported_programs_own(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=8)
    path = save_exported(tmp_path / "m.pt2", Tokens(), (*ids_and_mask().values(),), ({0: batch},) * 2)
    torch.save((torch.full((4, 5), 9), torch.zeros(4, 5)), tmp_path / "inputs.pt")
    recipe = load(path, tmp_path / "inputs.pt")
    assert recipes.example_sizes(recipe.inputs) == {"batch": 4}
    assert recipe.inputs(batch=6)["ids"].eq(9).all()
    torch.save({"ids": torch.full((4, 5), 9)}, tmp_path / "inputs.pt")
    with pytest.raises(RecipeError, match="does not fit the program") as raised:
        load(path, tmp_path / "inputs.pt")
    assert "ids int64" in raised.value.remedy


@torch.no_grad()
def test_an_exported_program_is_traced_with_its_sizes(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=8)
    path = save_exported(tmp_path / "m.pt2", Rows(), (torch.randn(3, 4),), ({0: batch},))
    recipe = load(path)
    model = recipe.load("auto").eval()  # an exported program's own eval() raises
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, recipe.inputs()))
    traced = torch.jit.trace(flat, flat.example.tensors, strict=False, check_trace=False)
    x = torch.randn(5, 4)
    torch.testing.assert_close(traced(x)[0], model(x=x))


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[0] * 2).reshape(x.shape[0], 2) + x.sum(1, keepdim=True)


def test_an_exported_program_moves_with_the_devices_in_its_graph(tmp_path: Path) -> None:
    path = save_exported(tmp_path / "m.pt2", Weighted(), (torch.randn(3, 4),), ({0: Dim("batch", min=1, max=8)},))
    model = load(path).load("auto").to("meta")
    assert model(x=torch.randn(2, 4, device="meta")).device.type == "meta"


class Weighted(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.linear(x))


# Inputs at other sizes.


def test_integers_and_masks_are_repeated() -> None:
    ids = torch.tensor([[5, 9, 2]])
    assert examples.like(ids, [2, 5]).tolist() == [[5, 9, 2, 5, 9]] * 2
    assert examples.like(ids, [1, 2]).tolist() == [[5, 9]]
    mask = torch.tensor([[0.0, -math.inf]])
    assert examples.like(mask, [1, 3]).tolist() == [[0.0, -math.inf, 0.0]]
    assert examples.like(torch.tensor([True, False]), [3]).tolist() == [True, False, True]


def test_floating_tensors_are_drawn_like_the_example() -> None:
    example = torch.rand(64, 64) + 3
    torch.manual_seed(0)
    first = examples.like(example, [64, 128])
    torch.manual_seed(0)
    assert torch.equal(first, examples.like(example, [64, 128]))
    assert not torch.equal(first, examples.like(example, [64, 128]))
    assert first.dtype == torch.float32
    assert abs(float(first.mean() - example.mean())) < 0.02
    assert abs(float(first.std() - example.std())) < 0.05
    assert example.min() <= first.min() <= first.max() <= example.max()


def test_sizes_that_have_no_elements() -> None:
    assert examples.like(torch.empty(0, 3), [2, 3]).shape == (2, 3)
    assert examples.like(torch.ones(2, dtype=torch.int64), [0]).shape == (0,)


# Files that are not programs.


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_a_package_of_aotinductor_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "m.pt2", "m/data/aotinductor/model/kernel.wrapper.so", "m/archive_format")
    with pytest.raises(RecipeError, match="AOTInductor package: machine code") as raised:
        load(path)
    assert "ExportedProgram" in raised.value.remedy


def test_a_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(RecipeError, match=r"is a checkpoint \(a dict of 2 entries\)") as raised:
        load(tmp_path / "weights.pt")
    assert "--checkpoint weights.pt" in raised.value.remedy


def test_a_pickled_model_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(RecipeError, match="pickled Python object") as raised:
        load(tmp_path / "model.pt")
    assert "torch.jit.save" in raised.value.remedy


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
def test_a_broken_file_is_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"m{suffix}").write_bytes(b"nothing of the kind")
    with pytest.raises(RecipeError, match="holds neither TorchScript nor an ExportedProgram"):
        load(tmp_path / f"m{suffix}")


@pytest.mark.parametrize(
    ("entry", "message"),
    [("m/constants.pkl", "torch.jit.load cannot read"), ("m/models/model.json", "torch.export.load cannot read")],
)
def test_a_program_that_torch_cannot_read(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(zipped(tmp_path / "m.pt2", entry))


def test_file_types_are_detected_by_content(tmp_path: Path) -> None:
    program, inputs = save_scripted(Plain(), tmp_path, ids_and_mask())
    renamed = program.rename(tmp_path / "program.pt2")
    assert recipes.example_sizes(load(renamed, inputs).inputs) == {"batch": 3}


def test_an_artifact_with_entries_is_refused(made_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "specialized", lambda contract: "batch")
    with pytest.raises(RecipeError, match="a separate entry for each size of batch"):
        load(made_bundle / "trace.pt")


# Whole runs.


def export(path: Path, inputs: Path | None, names: str, out: Path) -> Manifest:
    source = recipes.find(str(path), str(inputs or ""))
    request = dataclasses.replace(
        request_for("tiny:mlp", out, names), source=source, model=source.label, asked=str(path)
    )
    return pipeline.run(request)[0]


@pytest.mark.usefixtures("lent_zygote")
def test_torchscript_to_every_target(tmp_path: Path) -> None:
    manifest = export(*save_scripted(Plain(), tmp_path, ids_and_mask()), "trace,script,onnx,export", tmp_path / "out")
    assert {v.name: v.reason for v in manifest.variants if v.status != "passed"} == {}
    assert manifest.contract is not None
    assert manifest.contract.inputs[0].shape == ("batch", 5)
    assert manifest.model.name == "model"


@pytest.mark.usefixtures("lent_zygote")
def test_an_exported_program_to_every_target(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=8)
    path = save_exported(tmp_path / "m.pt2", Weighted(), (torch.randn(3, 4),), ({0: batch},))
    manifest = export(path, None, "trace,onnx,export", tmp_path / "out")
    assert {v.name: v.reason for v in manifest.variants if v.status != "passed"} == {}
    assert manifest.contract is not None
    assert manifest.contract.inputs[0].shape == ("batch", 4)


def test_the_contract_of_a_program_with_sums_of_sizes() -> None:
    """The mask has the length of the cache and the new tokens together; the names of sizes can be chosen."""
    dims = {"x": ("new", 2), "memory": ("past", 2), "mask": ("new+past", None)}
    specs = tuple(TensorSpec(name, "float32", shape) for name, shape in dims.items())
    promised = Contract("m", specs, specs[2:], {"new": Range(1, 16), "past": Range(4, 64)})
    example = [torch.ones(3, 2), torch.ones(5, 2), torch.ones(8, 1)]
    leaves, sizes, bounds = _saved_inputs.from_contract(promised, example)
    assert (sizes, bounds) == ({"new": 3, "past": 5}, {"new": (1, 16), "past": (4, 64)})
    assert [leaf.at({"new": 2, "past": 9}).shape for leaf in leaves] == [(2, 2), (9, 2), (11, 1)]
    made = [_saved_inputs._made_up(spec, promised) for spec in promised.inputs]
    assert [tensor.shape for tensor in made] == [(2, 2), (4, 2), (6, 1)]
    told = _saved_inputs.renamed(promised, [dimensions.parse("tokens=x:0"), dimensions.parse("before=memory:0:4..9")])
    assert [spec.shape[0] for spec in (*told.inputs, *told.outputs)] == ["tokens", "before", *["before+tokens"] * 2]
    with pytest.raises(RecipeError, match=r"is derived from another size, new\+past"):
        _saved_inputs.renamed(promised, [dimensions.parse("all=mask:0")])


def test_a_program_may_have_a_size_of_its_own_for_what_is_a_sum_in_its_contract(tmp_path: Path) -> None:
    class Summed(nn.Module):
        def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
            return x.sum() + memory.sum() + mask.sum()

    args = tuple(torch.ones(size, 2) for size in (3, 5, 8))
    path = save_exported(tmp_path / "model.pt2", Summed(), args, tuple({0: Dim.AUTO} for _ in args))
    specs = tuple(TensorSpec(name, "float32", (dim, 2)) for name, dim in (("x", "a"), ("memory", "b"), ("mask", "a+b")))
    promised = Contract("m", specs, (), {"a": Range(2, 9), "b": Range(2, 9)}, target="export")
    contract_files.append_to_zip(path, to_json(promised))
    assert recipes.example_sizes(load(path).inputs) == {"a": 3, "b": 5, "batch": 8}
