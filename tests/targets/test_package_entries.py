"""Packages with further models for some sizes: which one runs, where the weights are, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from support.commands import NATIVE, Run
from support.manifests import CONTRACT

import exporter
from exporter.core import contract, contract_files, environment, probing
from exporter.core.contract_records import TensorSpec
from exporter.core.errors import ArtifactError, ExportError, UsageError
from exporter.core.json_codec import to_json
from exporter.core.size_range import Range
from exporter.model import recipes
from exporter.targets import _package_entries, compile

RECIPE = """
import torch


class net:
    sizes = {"batch": (1, 64), "length": (1, 40)}

    @staticmethod
    def load(weights):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))

    @staticmethod
    def inputs(batch=2, length=3):
        return {"input": torch.randn(batch, length, 64)}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a package that has entries for batch 1 and 8."""
    folder = tmp_path_factory.mktemp("entries")
    (folder / "net.py").write_text(RECIPE)
    bundle = exporter.export(
        str(folder / "net.py:net"), targets="compile", out=folder / "bundle", entries=("batch=1,8",), bench=False
    )
    manifest = bundle.manifest
    (row,) = manifest.variants
    assert (row.status, row.reason) == ("passed", "")
    assert "compiled separately for batch=1, batch=8" in row.notes
    assert manifest.golden is not None
    cases = {case.name for case in manifest.golden.cases}
    assert {f"batch={b} length={n}" for b in (1, 8) for n in (1, 3, 5, 40)} <= cases
    assert row.contract is not None
    assert row.contract.entries == ({"batch": 1}, {"batch": 8})
    assert len(row.sessions) == 1 + NATIVE
    return folder / "bundle"


def test_every_size_is_right(made: Path) -> None:
    model = recipes.load(recipes.find(str(made.parent / "net.py:net"))).load("random")
    artifact = exporter.open_artifact(made / "compile.pt2")
    for batch, length in ((1, 3), (8, 40), (2, 1), (64, 7), (1, 1), (8, 1)):
        x = torch.randn(batch, length, 64)
        torch.testing.assert_close(artifact(x)["output"], model(x), rtol=1e-4, atol=1e-5)


def test_each_call_runs_the_model_for_its_sizes() -> None:
    def runner(name: str) -> Callable[..., Any]:
        return lambda inputs: name

    shapes = (TensorSpec("a", "float32", (4,)), TensorSpec("x", "float32", ("length", "2*batch", "batch")))
    entries = tuple({"batch": b, "length": 5} for b in (1, 8))
    promise = dataclasses.replace(
        CONTRACT, inputs=shapes, outputs=(), symbols={"batch": Range(1, 9), "length": Range(1, 9)}, entries=entries
    )
    models = {name: runner(name) for name in ("model", "entry_1_5", "entry_8_5")}
    run = _package_entries.choose(promise, models)
    found = {
        sizes: run((torch.empty(4), torch.empty(sizes[1], 2 * sizes[0], sizes[0])))
        for sizes in ((1, 5), (8, 5), (5, 8), (1, 4), (2, 5))
    }
    assert [str(name) for name in found.values()] == ["entry_1_5", "entry_8_5", "model", "model", "model"]


def _members(package: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(package) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


blobs = pytest.mark.skipif(
    torch.torch_version.TorchVersion(torch.__version__) < "2.14", reason="before torch 2.14 libraries contain weights"
)


@blobs
def test_weights_are_stored_once(made: Path) -> None:
    sizes = {name: len(data) for name, data in _members(made / "compile.pt2").items() if name.endswith(".blob")}
    weights = 4 * (64 * 256 + 256 * 8)
    (model,) = (size for name, size in sizes.items() if "/model/" in name)
    assert model > weights
    assert sum(sizes.values()) < model + weights / 4, sizes


def test_a_weight_that_differs_is_kept(tmp_path: Path) -> None:
    files = {}
    for model, values in {"model": (1.0, 2.0), "entry_1": (2.0, 3.0)}.items():
        stem = tmp_path / f"{model}_weights"
        data = b"".join(torch.full((20,), value).numpy().tobytes().ljust(128, b"\0") for value in values)
        index = [
            {
                "name": f"w{n}",
                "dtype": "float32",
                "shape": [20],
                "stride": [1],
                "start": 0,
                "offset": 128 * n,
                "bytes": 80,
            }
            for n in range(2)
        ]
        stem.with_suffix(".blob").write_bytes(data)
        stem.with_suffix(".json").write_text(json.dumps({"constants": index}))
        files[model] = [str(stem.with_suffix(end)) for end in (".blob", ".json")]
    _package_entries.share(files)
    shared, own = json.loads((tmp_path / "entry_1_weights.json").read_text())["constants"]
    assert (shared["in"], shared["offset"]) == ("model", 128)
    assert ("in" in own, own["offset"]) == (False, 0)
    assert (tmp_path / "entry_1_weights.blob").read_bytes() == torch.full((20,), 3.0).numpy().tobytes().ljust(
        128, b"\0"
    )


def test_a_package_that_is_opened_again_uses_its_own_weights(made: Path) -> None:
    x, other = torch.randn(8, 3, 64), torch.randn(3, 3, 64)
    model = recipes.load(recipes.find(str(made.parent / "net.py:net"))).load("random")
    for _ in range(3):  # models that were closed are used again, with the weights mapped at the same addresses
        loaded = compile.load(made / "compile.pt2", _options())
        beside = compile.load(made / "compile.pt2", _options())
        for one in (loaded, beside):
            for inputs in (x, other):
                torch.testing.assert_close(one.run((inputs,))[0], model(inputs), rtol=1e-4, atol=1e-5)
        del loaded
        torch.testing.assert_close(beside.run((x,))[0], model(x), rtol=1e-4, atol=1e-5)


def _options() -> Any:
    from exporter.targets import Options

    return Options()


@pytest.mark.skipif(not NATIVE, reason="exporter-run is not built")
def test_cpp_runs_the_model_for_the_sizes(made: Path, tmp_path: Path) -> None:
    runner = environment.find_runner()
    done = subprocess.run(
        [str(runner), "verify", str(made / "compile.pt2")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    package = tmp_path / "compile.pt2"
    shutil.copy(made / "compile.pt2", package)
    promise = contract_files.read_zip(package)
    _with_contract(package, dataclasses.replace(promise, entries=({"batch": 1}, {"batch": 4})))
    save_file({"input": torch.zeros(4, 3, 64)}, tmp_path / "in.safetensors")
    command = [str(runner), "run", package, "--inputs", tmp_path / "in.safetensors", "--outputs", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "entry_4" in done.stderr


def _with_contract(package: Path, promise: Any) -> None:
    members = {}
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            members[name] = archive.read(name)
    with zipfile.ZipFile(package, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, to_json(promise) if name.endswith("/contract.json") else data)


def test_entries_are_read_with_their_contract() -> None:
    sizes = {"batch": Range(1, 8), "length": Range(1, 8)}
    for entries, symbols, said in (
        (({"batch": 9},), sizes, "which are not sizes that it allows"),
        (({"depth": 1},), sizes, "which are not sizes that it allows"),
        (({"batch": 1}, {"batch": 1, "length": 5}), sizes, "entries have sizes of different symbols"),
        (({"length": 2},), {**sizes, "batch": Range(1, 8, (1, 8))}, "entries beside choices"),
    ):
        wrong = dataclasses.replace(CONTRACT, target="compile", symbols=symbols, entries=entries)
        with pytest.raises(ArtifactError, match=said):
            contract_files.read(to_json(wrong))


@blobs
@pytest.mark.parametrize("model", ["entry_8", "other"])
def test_a_weight_in_a_blob_that_is_not_open(made: Path, tmp_path: Path, model: str) -> None:
    package = tmp_path / "compile.pt2"
    with zipfile.ZipFile(made / "compile.pt2") as archive, zipfile.ZipFile(package, "w") as changed:
        for member in archive.infolist():
            data = archive.read(member)
            changed.writestr(member, data.replace(b'"in": "model"', f'"in": "{model}"'.encode()))
    with pytest.raises(ArtifactError, match=f"is in the blob of {model}, which is not open"):
        compile.load(package, _options())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("batch",), "'batch' does not name sizes"),
        (("batch=1,",), "does not name sizes"),
        (("batch=0",), "does not name sizes"),
        (("batch=1", "batch=2"), "names batch twice"),
        (("batch=1,1",), "names batch=1,1 twice"),
    ],
)
def test_malformed_entries(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        probing.entry_sizes(given)


def test_each_combination_is_an_entry() -> None:
    assert probing.entry_sizes(("sequence=128", "batch=1,8")) == (
        {"batch": 1, "sequence": 128},
        {"batch": 8, "sequence": 128},
    )
    assert probing.entry_sizes(()) == ()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("batch=9", "asks for batch = 9, which is outside the range of batch, 1 to 8"),
        ("depth=2", "depth, which is not dynamic"),
    ],
)
def test_entries_outside_the_contract(run: Run, entries: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run("tiny:mlp", "compile", entries=(entries,))


def test_an_entry_that_would_narrow_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from exporter.model import capture

    fixed = SimpleNamespace(symbols=("length",))
    monkeypatch.setattr(capture, "capture", lambda *_: SimpleNamespace(fixed=[fixed], bounds={}, rules={}))
    program = SimpleNamespace(make_at=lambda sizes: (), contract=CONTRACT, function=CONTRACT, keeps_state=False)
    graph = SimpleNamespace(module=lambda check_guards: torch.nn.Identity())
    with pytest.raises(ExportError, match="the model for batch=2 would not take every length"):
        _package_entries.graphs(cast(Any, graph), cast(Any, program), ({"batch": 2},))


def test_a_package_with_state_takes_no_entries(run: Run) -> None:
    """It is refused before anything is captured, although another target of the run takes no entries."""
    with pytest.raises(UsageError, match="a state of its own, and the model keeps state between calls") as raised:
        run("stateful:statistics", "trace,compile", entries=("batch=2",))
    assert raised.value.remedy == "give --state inputs too, or leave out --entries"


def test_settled_contracts() -> None:
    settled = contract.settle(CONTRACT, {"batch": 3})
    assert "batch" not in settled.symbols
    assert all("batch" not in str(dim) for spec in (*settled.inputs, *settled.outputs) for dim in spec.shape)
