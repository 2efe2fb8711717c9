"""Loading checkpoints from many libraries: keys with prefixes of wrappers, containers, shards, and refused files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file
from support.commands import Cli, recipe_path
from torch import nn

import exporter
from exporter.core.errors import RecipeError
from exporter.model import checkpoint

State = dict[str, torch.Tensor]


class Net(nn.Module):
    """A block, a head, batch norm, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(x)) * self.scale  # type: ignore[no-any-return]


class Tied(nn.Module):
    """An embedding that shares its weight with the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def trained() -> Net:
    torch.manual_seed(1)
    return Net()


@pytest.fixture
def fresh() -> Net:
    torch.manual_seed(2)
    return Net()


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict().values(), b.state_dict().values()
    return all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def saved(value: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(value, path)
    else:
        torch.save(value, path)
    return path


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.ckpt", "w.safetensors"])
def test_formats(name: str, trained: Net, fresh: Net, tmp_path: Path) -> None:
    assert checkpoint.load_into(fresh, saved(trained.state_dict(), tmp_path / name), False) == []
    assert same(fresh, trained)
    assert fresh.exporter_weights == f"checkpoint {name}"


def test_the_format_older_than_zip(trained: Net, fresh: Net, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert checkpoint.load_into(fresh, tmp_path / "old.pth", False) == []
    assert same(fresh, trained)


def shards(state: State, folder: Path, suffix: str = ".safetensors") -> Path:
    """Write two files and their index, as on the hub."""
    keys = list(state)
    names = [f"model-0000{i}-of-00002{suffix}" for i in (1, 2)]
    for name, own in zip(names, (keys[:3], keys[3:]), strict=True):
        saved({key: state[key] for key in own}, folder / name)
    index = folder / f"model{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {key: names[i >= 3] for i, key in enumerate(keys)}}))
    return index


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards(suffix: str, trained: Net, fresh: Net, tmp_path: Path) -> None:
    assert checkpoint.load_into(fresh, shards(trained.state_dict(), tmp_path, suffix), False) == []
    assert same(fresh, trained)


def test_shards_that_are_links_into_another_folder(trained: Net, fresh: Net, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"  # the layout of the hub's cache
    blobs.mkdir()
    snapshot.mkdir()
    index = shards(trained.state_dict(), blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert checkpoint.load_into(fresh, snapshot / index.name, False) == []


@pytest.mark.parametrize("name", ["../w.safetensors", "/w.safetensors", "a/../../w.safetensors", "..\\w.safetensors"])
def test_an_index_with_paths_outside_its_folder(name: str, trained: Net, fresh: Net, tmp_path: Path) -> None:
    saved(trained.state_dict(), tmp_path / "w.safetensors")
    index = tmp_path / "sub" / "model.safetensors.index.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"weight_map": dict.fromkeys(trained.state_dict(), name)}))
    with pytest.raises(RecipeError, match="outside its folder"):
        checkpoint.load_into(fresh, index, False)


def test_a_shard_that_is_missing_or_lacks_a_key(trained: Net, fresh: Net, tmp_path: Path) -> None:
    index = shards(trained.state_dict(), tmp_path)
    second = tmp_path / "model-00002-of-00002.safetensors"
    saved({"other": torch.zeros(1)}, second)
    with pytest.raises(RecipeError, match=r"00002-of-00002.safetensors lacks"):
        checkpoint.load_into(fresh, index, False)
    second.unlink()
    with pytest.raises(RecipeError, match=r"there is no checkpoint .*00002-of-00002"):
        checkpoint.load_into(fresh, index, False)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"a": 1}}', '{"weight_map": []}'])
def test_a_broken_index(text: str, fresh: Net, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(RecipeError, match="is not an index of shards"):
        checkpoint.load_into(fresh, index, False)


def renamed(state: State, change: Callable[[str], str]) -> State:
    return {change(key): value for key, value in state.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda key: f"_orig_mod.{key}",
        lambda key: f"module.{key}",
        lambda key: f"_orig_mod.module.{key}",
        lambda key: f"module._orig_mod.{key}",
        lambda key: f"module.module.{key}",
        lambda key: key.replace("block.", "block._orig_mod."),
        lambda key: f"model.{key.replace('block.', 'block._orig_mod.')}",
        lambda key: f"model._orig_mod.{key}",
        lambda key: f"module.model._orig_mod.{key}",
        lambda key: f"_fsdp_wrapped_module.{key.replace('head.', 'head._fsdp_wrapped_module.')}",
        lambda key: f"net.{key}",
    ],
)
def test_prefixes_of_wrappers(change: Callable[[str], str], trained: Net, fresh: Net, tmp_path: Path) -> None:
    path = saved(renamed(trained.state_dict(), change), tmp_path / "w.pt")
    assert checkpoint.load_into(fresh, path, False) == []
    assert same(fresh, trained)


def compiled(model: nn.Module) -> Any:
    return torch.compile(model)  # nothing is compiled before the first call


def compiled_inside(model: Net) -> Net:
    model.block = compiled(model.block)
    return model


class Wrapped(nn.Module):
    """The model under the name that DataParallel uses."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


WRAPPINGS: list[Callable[[Any], Any]] = [
    lambda model: model,
    compiled,
    compiled_inside,
    Wrapped,
    lambda model: compiled(Wrapped(model)),
    lambda model: Wrapped(compiled(model)),
]


@pytest.mark.parametrize("save_as", range(len(WRAPPINGS)))
@pytest.mark.parametrize("load_as", range(len(WRAPPINGS)))
def test_from_and_into_wrapped_models(save_as: int, load_as: int, trained: Net, fresh: Net, tmp_path: Path) -> None:
    expected = {key: value.clone() for key, value in trained.state_dict().items()}
    path = saved(WRAPPINGS[save_as](trained).state_dict(), tmp_path / "w.pt")
    target = WRAPPINGS[load_as](fresh)
    assert checkpoint.load_into(target, path, False) == []
    assert all(torch.equal(a, b) for a, b in zip(target.state_dict().values(), expected.values(), strict=True))


def test_a_compiled_model_has_prefixed_keys() -> None:
    """The tests above rely on this: a compiled model's checkpoint has different keys than the model."""
    assert all(key.startswith("_orig_mod.") for key in compiled(Net()).state_dict())


def test_a_module_named_module_keeps_its_name(tmp_path: Path) -> None:
    class Legitimate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.module = nn.ParameterDict({"weight": nn.Parameter(torch.ones(2))})

    model = Legitimate()
    path = saved({"weight": torch.full((2,), 3.0), "module.weight": torch.full((2,), 4.0)}, tmp_path / "w.pt")
    assert checkpoint.load_into(model, path, False) == []
    assert (model.weight[0].item(), model.module["weight"][0].item()) == (3.0, 4.0)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state},
        lambda state: {"model": state, "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}, "epoch": 3},
        lambda state: {"model_state_dict": state},
        lambda state: {"ema": state},
        lambda state: {"model": {"ema": state}},
        lambda state: {"module": {"model": {"state_dict": state}}},
        lambda state: {"state_dict": renamed(state, lambda key: f"model.{key}"), "pytorch-lightning_version": "2"},
        lambda state: {"model": state, "args": argparse.Namespace(lr=0.1), "best": numpy.float64(0.9)},
        lambda state: {"module": {f"module.{key}": value for key, value in state.items()}, "loss": torch.tensor(1.0)},
        lambda state: {"n_averaged": torch.tensor(3), **renamed(state, lambda key: f"module.{key}")},
    ],
)
def test_containers(wrap: Callable[[State], Any], trained: Net, fresh: Net, tmp_path: Path) -> None:
    assert checkpoint.load_into(fresh, saved(wrap(trained.state_dict()), tmp_path / "w.pt"), False) == []
    assert same(fresh, trained)


def test_of_two_containers_that_fit_the_first_is_used_with_a_note(trained: Net, fresh: Net, tmp_path: Path) -> None:
    path = saved({"ema": Net().state_dict(), "model": trained.state_dict()}, tmp_path / "w.pt")
    assert checkpoint.load_into(fresh, path, False) == ["checkpoint w.pt: used model, not ema"]
    assert same(fresh, trained)


def test_the_container_that_fits_is_used(trained: Net, fresh: Net, tmp_path: Path) -> None:
    path = saved({"model": nn.Linear(9, 9).state_dict(), "ema": trained.state_dict()}, tmp_path / "w.pt")
    assert checkpoint.load_into(fresh, path, False) == []
    assert same(fresh, trained)


def test_mismatched_keys_are_listed(trained: Net, fresh: Net, tmp_path: Path) -> None:
    state = trained.state_dict()
    del state["block.0.bias"], state["block.1.weight"]
    state["head.weight"] = torch.zeros(3, 4)
    state |= {f"extra.{i}": torch.zeros(1) for i in range(6)}
    with pytest.raises(RecipeError) as raised:
        checkpoint.load_into(fresh, saved(state, tmp_path / "w.pt"), False)
    assert str(raised.value) == (
        "w.pt does not fit Net: 2 keys missing (block.0.bias, block.1.weight); "
        "6 keys unexpected (extra.0, extra.1, extra.2, extra.3, ...); "
        "1 key with a different shape or kind (head.weight: [3, 4] in the file, [2, 4] in the model)"
    )
    assert "--allow-partial" in raised.value.remedy


def test_a_partial_load(trained: Net, fresh: Net, tmp_path: Path) -> None:
    state = trained.state_dict()
    state["head.weight"] = torch.zeros(3, 4)
    kept = fresh.head.weight.clone()
    notes = checkpoint.load_into(fresh, saved(state, tmp_path / "w.pt"), True)
    assert [note.split(" (")[0] for note in notes] == ["checkpoint w.pt: 1 key with a different shape or kind"]
    assert torch.equal(fresh.head.weight, kept)
    assert torch.equal(fresh.block[0].weight, trained.block[0].weight)
    assert fresh.exporter_weights == "checkpoint w.pt (in part)"


@pytest.mark.parametrize("allow_partial", [False, True])
def test_a_checkpoint_without_common_keys_is_always_an_error(allow_partial: bool, fresh: Net, tmp_path: Path) -> None:
    path = saved({"conv.weight": torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(RecipeError, match=r"none of the model's keys: it has conv.weight, the model block.0.weight"):
        checkpoint.load_into(fresh, path, allow_partial)


@pytest.mark.parametrize("left_out", ["embedding.weight", "head.weight"])
def test_one_of_tied_weights_is_enough(left_out: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained, fresh = Tied(), Tied()
    state = {key: value for key, value in trained.state_dict().items() if key != left_out}
    assert checkpoint.load_into(fresh, saved(state, tmp_path / "w.safetensors"), False) == []
    assert torch.equal(fresh.head.weight, trained.head.weight)
    assert fresh.head.weight is fresh.embedding.weight


def test_tied_weights_that_differ_in_the_file(tmp_path: Path) -> None:
    state = {"embedding.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)}
    with pytest.raises(RecipeError, match=r"different, but tied in the model \(embedding.weight and head.weight\)"):
        checkpoint.load_into(Tied(), saved(state, tmp_path / "w.pt"), False)


def test_buffers_that_are_not_saved(trained: Net, fresh: Net, tmp_path: Path) -> None:
    assert "scale" not in trained.state_dict()
    path = saved(
        trained.state_dict() | {"scale": torch.tensor(9.0)}, tmp_path / "w.pt"
    )  # an older version of the class saved it
    assert checkpoint.load_into(fresh, path, False) == []


def test_batch_counters_may_be_missing(trained: Net, fresh: Net, tmp_path: Path) -> None:
    state = {key: value for key, value in trained.state_dict().items() if not key.endswith("num_batches_tracked")}
    assert checkpoint.load_into(fresh, saved(state, tmp_path / "w.safetensors"), False) == []


def test_floats_are_cast_with_a_note(trained: Net, fresh: Net, tmp_path: Path) -> None:
    state = {key: value.half() if value.is_floating_point() else value for key, value in trained.state_dict().items()}
    notes = checkpoint.load_into(fresh, saved(state, tmp_path / "w.pt"), False)
    assert notes == ["checkpoint w.pt: 8 tensors cast from float16 to float32"]
    assert fresh.head.weight.dtype == torch.float32
    assert torch.equal(fresh.head.weight, trained.head.weight.half().float())


def test_integers_are_never_cast_to_floats(trained: Net, fresh: Net, tmp_path: Path) -> None:
    """Such weights are quantized: without their scales, the values are different."""
    state = trained.state_dict() | {"head.weight": torch.ones(2, 4, dtype=torch.int8)}
    with pytest.raises(RecipeError, match=r"head.weight: int8 in the file, float32 in the model"):
        checkpoint.load_into(fresh, saved(state, tmp_path / "w.pt"), False)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "old.pth"])
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.98])
def test_a_truncated_file(name: str, kept: float, trained: Net, fresh: Net, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "old.pth":
        torch.save(trained.state_dict(), path, _use_new_zipfile_serialization=False)
    else:
        saved(trained.state_dict(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(RecipeError, match="is empty" if not kept else "cannot be read") as raised:
        checkpoint.load_into(fresh, path, True)
    assert "again" in raised.value.remedy


def test_a_file_of_the_old_format_truncated_at_each_byte(tmp_path: Path) -> None:
    """Some end within the name of a type, which torch then refuses as code."""
    layer, path = torch.nn.Linear(3, 2), tmp_path / "old.pth"
    state = {"options": argparse.Namespace(rate=1), **layer.state_dict()}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    for kept in range(1, len(data)):
        path.write_bytes(data[:kept])
        with pytest.raises(RecipeError, match="cannot be read"):
            checkpoint.load_into(layer, path, True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.npz", b"PK", "not a supported checkpoint"),
        ("w.pt", b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        ("w.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        ("w.pt", b"<html>404</html>", "cannot be read"),
    ],
)
def test_other_files(name: str, content: bytes, message: str, fresh: Net, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        checkpoint.load_into(fresh, tmp_path / name, True)


@pytest.mark.parametrize("name", ["nowhere.pt", ""])
def test_a_missing_file(name: str, fresh: Net, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no checkpoint"):
        checkpoint.load_into(fresh, tmp_path / name, True)


def test_a_whole_module_is_refused(trained: Net, fresh: Net, tmp_path: Path) -> None:
    path = saved(trained, tmp_path / "model.pt")
    with pytest.raises(RecipeError, match=r"holds more than weights: an object of test_checkpoint\.Net") as raised:
        checkpoint.load_into(fresh, path, True)
    assert "state_dict()" in raised.value.remedy


def test_a_program_is_refused(fresh: Net, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "script.pt")
    with pytest.raises(RecipeError, match="is a TorchScript program, not a checkpoint"):
        checkpoint.load_into(fresh, tmp_path / "script.pt", True)
    program = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, tmp_path / "program.pt2")
    with pytest.raises(RecipeError, match="is an exported program, not a checkpoint"):
        checkpoint.load_into(fresh, (tmp_path / "program.pt2").rename(tmp_path / "program.pt"), True)


def test_a_file_without_a_state_dict(fresh: Net, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="holds no state dict; it has epoch, optimizer"):
        checkpoint.load_into(fresh, saved({"optimizer": {"lr": 0.1}, "epoch": 3}, tmp_path / "w.pt"), True)
    with pytest.raises(RecipeError, match="holds a Tensor, not a state dict"):
        checkpoint.load_into(fresh, saved(torch.zeros(3), tmp_path / "w.pt"), True)


@pytest.mark.filterwarnings("ignore")  # torch.distributed warns about missing backends
def test_a_shard_of_a_tensor_is_refused(trained: Net, fresh: Net, tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        mesh = init_device_mesh("cpu", (1,))
        state = trained.state_dict() | {"head.weight": distribute_tensor(trained.head.weight.detach(), mesh)}
        path = saved(state, tmp_path / "w.pt")
        with pytest.raises(RecipeError, match="holds a DTensor") as raised:
            checkpoint.load_into(fresh, path, True)
    finally:
        dist.destroy_process_group()
    assert "full_state_dict" in raised.value.remedy


def mlp() -> nn.ModuleDict:
    """A checkpoint with weights for tiny:mlp."""
    return nn.ModuleDict({"layers": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))})


def exported(cli: Cli, out: Path, file: Path, *options: str) -> tuple[int, str, Any]:
    done = cli(
        "export",
        recipe_path("tiny:mlp"),
        "--checkpoint",
        file,
        "--targets=trace",
        "--no-bench",
        "--json",
        "--out",
        out,
        *options,
    )
    return done.code, done.err, json.loads(done.out) if done.code == 0 else None


def test_an_export_with_a_checkpoint(cli: Cli, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = mlp()
    file = saved(compiled(model).state_dict(), tmp_path / "mine.pt")
    code, _, manifest = exported(cli, tmp_path / "out", file)
    assert code == 0
    assert manifest["model"]["weights"] == "checkpoint mine.pt"
    assert f"--checkpoint {file}" in manifest["variants"][0]["reproduce"]
    x = torch.randn(2, 4)
    assert torch.allclose(torch.jit.load(tmp_path / "out" / "trace.pt")(x)[0], model["layers"](x))


def test_an_export_with_a_part_of_a_checkpoint(cli: Cli, tmp_path: Path) -> None:
    state = mlp().state_dict()
    lost = list(state)[-1]
    del state[lost]
    file = saved(state, tmp_path / "mine.safetensors")
    code, err, _ = exported(cli, tmp_path / "out", file)
    assert code == 2
    assert f"1 key missing ({lost})" in err
    assert "--allow-partial" in err
    code, _, manifest = exported(cli, tmp_path / "again", file, "--allow-partial")
    assert code == 0
    assert manifest["model"]["weights"] == "checkpoint mine.safetensors (in part)"
    assert f"checkpoint mine.safetensors: 1 key missing ({lost})" in json.dumps(manifest)
    assert "--allow-partial" in manifest["variants"][0]["reproduce"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--allow-partial"], "has no effect without a checkpoint"),
        (["--checkpoint", __file__, "--weights", "pretrained"], "two sources of weights"),
        (["--checkpoint", "nowhere.pt"], "does not exist"),
    ],
)
@pytest.mark.parametrize("command", ["export", "explain"])
def test_options_that_contradict(command: str, options: list[str], message: str, cli: Cli) -> None:
    done = cli(command, recipe_path("tiny:mlp"), *options)
    assert done.code == 2
    assert message in done.err


def test_explain_checks_the_checkpoint_first(cli: Cli, tmp_path: Path) -> None:
    file = saved({"layers.0.weight": torch.zeros(8, 4)}, tmp_path / "mine.pt")
    done = cli("explain", recipe_path("tiny:mlp"), "--checkpoint", file)
    assert done.code == 2
    assert "3 keys missing" in done.err


def test_an_export_in_python_with_a_checkpoint(tmp_path: Path) -> None:
    model = mlp()
    file = saved(model.state_dict(), tmp_path / "mine.pt")
    done = exporter.export(recipe_path("tiny:mlp"), targets="trace", bench=False, out=tmp_path / "out", checkpoint=file)
    assert done.manifest.model.weights == "checkpoint mine.pt"
    x = torch.randn(2, 4)
    assert torch.allclose(exporter.open_artifact(tmp_path / "out" / "trace.pt")(x)["output"], model["layers"](x))
