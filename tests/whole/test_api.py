"""The Python API: export a module in memory, and call an artifact with named tensors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commands import recipe_path, republish

import exporter
from exporter import targets
from exporter.bundle import layout as bundles
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError, ContractError, UsageError
from exporter.core.option import settings
from exporter.core.settings import RunSettings, SourceSettings
from exporter.core.size_range import Range
from exporter.targets import _plugins


class Local(torch.nn.Module):
    """A model defined in this file, in training mode, as it is for a user."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(4, 2), torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.dropout(self.linear(x))}


@pytest.fixture
def toy(lent_zygote: None, tmp_path: Path):
    """A function that exports without timing: `toy(model, inputs)`."""

    def act(model: Any, inputs: Any = None, **settings: Any) -> exporter.Bundle:
        return exporter.export(
            model, inputs, **{"targets": "trace", "out": tmp_path / "toy", "bench": False, **settings}
        )

    return act


def test_a_module_in_memory(toy) -> None:
    model = Local()
    made = toy(model, lambda batch=2: {"x": torch.randn(batch, 4)}, sizes={"batch": (1, 8)})
    assert [v.status for v in made.manifest.variants] == ["passed"], made.manifest.variants[0].reason
    assert made.manifest.model.name == "local"
    artifact = exporter.open_artifact(made.path / "trace.pt")
    x = torch.randn(5, 4)
    torch.testing.assert_close(artifact(x=x)["y"], model.eval()(x)["y"])


def test_inputs_without_sizes_stay_fixed(toy) -> None:
    made = toy(torch.nn.Linear(4, 2), torch.randn(3, 4), name="fixed")
    assert made.manifest.model.name == "fixed"
    artifact = exporter.open_artifact(made.path / "trace.pt")
    with pytest.raises(ContractError, match="dim 0 is 2, the contract wants 3"):
        artifact(torch.randn(2, 4))


def test_a_recipe_by_name(toy) -> None:
    manifest = toy(recipe_path("tiny:mlp"), targets="trace,export").manifest
    assert manifest.status == "complete"
    assert manifest.model.source == recipe_path("tiny:mlp")
    again = [shlex.split(variant.reproduce)[:3] for variant in manifest.variants]
    assert again == [["exporter", "export", recipe_path("tiny:mlp")]] * 2


def test_sizes_of_the_example(toy) -> None:
    made = toy(recipe_path("tiny:pair"), example_sizes={"sequence": 5}, ranges={"batch": Range(1, 3)})
    assert made.manifest.model.sizes == {"batch": 1, "sequence": 5}
    assert made.manifest.contract.symbols == {"batch": Range(1, 3), "sequence": Range(1, 6)}


def test_every_setting_is_a_documented_argument() -> None:
    arguments = inspect.signature(exporter.export).parameters
    described = inspect.getdoc(exporter.export)
    for setting in (*settings(RunSettings), *settings(SourceSettings)):
        assert arguments[setting.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"\n    {setting.name}: {setting.option.help}" in described
    assert all(f"\n    {name}: " in described for name in arguments)


@pytest.mark.parametrize(
    ("model", "inputs", "settings", "message"),
    [
        (torch.nn.Linear(2, 2), None, {}, "inputs is missing"),
        (42, torch.ones(1), {}, "model is int"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"benhc": True}, "has no argument benhc"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"source": None}, "has no argument source"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"variants": ()}, "has no argument variants"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"command": "mine"}, "has no argument command"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"targets": "tarce"}, "there is no target"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"task": "fill-mask"}, "task has no effect on a module"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"allow_partial": True}, "has no effect without a checkpoint"),
        ("bert", None, {"weights": "pretrained", "checkpoint": "mine.pt"}, "two sources of weights"),
        ("bert", None, {"weights": "pretraind"}, "weights is 'pretraind'"),
        (recipe_path("tiny:mlp"), None, {"example_sizes": {"bacth": 2}}, r"inputs\(\) takes no bacth"),
        ("bort", None, {}, "there is no model"),
        (torch.nn.Linear(2, 2), {}, {}, "contain no tensor"),
        (torch.nn.Linear(2, 2), lambda batch=2: torch.ones(batch, 2), {"sizes": {"b": (1, 2)}}, "sizes names b"),
        ("bert", None, {"sweep": {"batch": ()}}, "sweep names no value of batch"),
        ("bert", None, {"samples": [torch.ones(1, 2)]}, "samples applies only to a module in memory"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"metric": print}, "metric requires samples"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"samples": torch.ones(1, 2)}, "samples is Tensor"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"threads": 0}, "threads is 0"),
        (torch.nn.Linear(2, 2), torch.ones(1, 2), {"threads": 100_000}, "threads is 100000"),
    ],
)
def test_invalid_arguments_are_refused(
    toy, tmp_path: Path, model: Any, inputs: Any, settings: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        toy(model, inputs, **settings)
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize("threads", [-1, 0, 1025, 100_000])
def test_invalid_thread_counts_are_refused(made_bundle: Path, threads: int) -> None:
    with pytest.raises(UsageError, match=f"threads is {threads}"):
        exporter.open_artifact(made_bundle / "model.onnx", threads=threads)


def test_an_artifact_is_not_pickled_and_copies_are_itself(made_bundle: Path) -> None:
    artifact = exporter.open_artifact(made_bundle / "trace.pt")
    with pytest.raises(TypeError, match=r"an Artifact cannot be pickled; open it again with open_artifact\(path\)"):
        pickle.dumps(artifact)
    assert copy.copy(artifact) is artifact
    assert copy.deepcopy([artifact])[0] is artifact


@pytest.mark.parametrize("form", ["a function", "a list", "a generator"])
def test_samples_and_metric_of_a_module_in_memory(toy, form: str) -> None:
    given = [{"x": torch.linspace(-1, 1, 4 * n).reshape(n, 4)} for n in (1, 3)]
    samples = {"a function": lambda: given, "a list": given, "a generator": (one for one in given)}[form]
    model = Local().eval()
    made = toy(
        model,
        lambda batch=2: {"x": torch.randn(batch, 4)},
        sizes={"batch": (1, 8)},
        samples=samples,
        metric=lambda outputs, sample: float(outputs["y"].sum() + len(sample["x"])),
        max_metric_loss=1e-3,
    )
    assert made.failed == {}
    metric = made.manifest.metric
    assert metric is not None
    assert metric.samples == 2
    with torch.no_grad():
        wanted = [float(model(**one)["y"].sum()) + len(one["x"]) for one in given]
    assert metric.eager == pytest.approx(sum(wanted) / 2)
    assert made.manifest.variants[0].metric == pytest.approx(metric.eager, abs=1e-3)


class Around(torch.nn.Module):
    """TorchScript inside a module."""

    def __init__(self, inner: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.inner(x) * 2}


class Halves(torch.nn.Module):
    """A branch on a size, which TorchScript keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() if x.shape[0] > 100 else self.linear(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.jit.script(Halves().eval()),
        lambda: torch.jit.trace(torch.nn.Linear(4, 2).eval(), torch.randn(2, 4)),
        lambda: Around(torch.jit.script(Halves().eval())),
    ],
    ids=["scripted", "traced", "inside a module"],
)
def test_torchscript_in_memory(toy, make) -> None:
    model = make()
    made = toy(model, lambda batch=2: (torch.randn(batch, 4),), sizes={"batch": (1, 8)}, targets="trace,script,onnx")
    assert made.failed == {}
    x = torch.randn(5, 4)
    wanted = model(x)
    wanted = wanted["y"] if isinstance(wanted, dict) else wanted
    for variant in made.manifest.variants:
        (given,) = exporter.open_artifact(made.path / variant.artifact.path)(x).values()
        torch.testing.assert_close(given, wanted)


def test_a_model_that_cannot_be_pickled(toy) -> None:
    model = torch.nn.Linear(2, 2)
    model.generator = (i for i in range(3))  # type: ignore[assignment]
    with pytest.raises(UsageError, match="cannot be pickled") as raised:
        toy(model, torch.ones(1, 2))
    assert "recipe file" in raised.value.remedy


SCRIPT = """
import sys, torch, exporter

class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
    def forward(self, x):
        return torch.relu(self.linear(x))

def inputs(batch=2):
    return {"x": torch.randn(batch, 3)}

if __name__ == "__main__":
    made = exporter.export(Mine(), inputs, targets="trace,export", out=sys.argv[1], bench=False)
    print([variant.status for variant in made.manifest.variants], made.path)
"""


def test_a_module_defined_in_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "['passed', 'passed']" in done.stdout
    assert exporter.open_artifact(tmp_path / "out" / "trace.pt")(x=torch.ones(7, 3))["output"].shape == (7, 3)


FILES = ["trace.pt", "script.pt", "exported.pt2", "model.onnx"]
PAIR = {"ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "mask": torch.ones(2, 3)}


@pytest.mark.parametrize("file", FILES)
def test_named_tensors_in_and_out(made_bundle: Path, file: str) -> None:
    artifact = exporter.open_artifact(made_bundle / file, threads=1)
    outputs = artifact(**PAIR)
    assert {name: tuple(t.shape) for name, t in outputs.items()} == {
        "hidden": (2, 3, 4),
        "pooled": (2, 4),
        "best": (2,),
    }
    by_place = artifact(PAIR["ids"], mask=PAIR["mask"])
    assert all(torch.equal(outputs[name], by_place[name]) for name in outputs)


@pytest.mark.parametrize("file", FILES)
def test_noncontiguous_inputs_return_the_same_outputs(made_bundle: Path, file: str) -> None:
    artifact = exporter.open_artifact(made_bundle / file)
    turned = {name: t.t().contiguous().t() for name, t in PAIR.items()}
    assert not turned["ids"].is_contiguous()
    want, got = artifact(**PAIR), artifact(**turned)
    assert all(torch.equal(got[name], want[name]) for name in want)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"ids": PAIR["ids"]}, "input mask is missing"),
        ({**PAIR, "extra": torch.ones(1)}, "there is no input extra"),
        ({**PAIR, "ids": PAIR["ids"].int()}, "ids: dtype int32, the contract wants int64"),
        ({**PAIR, "mask": torch.ones(2, 3, 1)}, "mask: 3 dimensions, the contract wants 2"),
        ({**PAIR, "mask": torch.ones(2, 4)}, "sequence is 3"),
        (
            {"ids": torch.ones(5, 3, dtype=torch.long), "mask": torch.ones(5, 3)},
            "batch is 5, the contract allows 1 to 4",
        ),
        ({**PAIR, "mask": [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]}, "mask is list, not a tensor"),
        ({**PAIR, "mask": torch.ones(2, 3).numpy()}, "mask is ndarray, not a tensor"),
        ({**PAIR, "mask": torch.ones(2, 3).to_sparse()}, "mask is a sparse tensor .*, the contract wants a dense"),
        ({**PAIR, "mask": torch.ones(2, 3, device="meta")}, "mask is a tensor without values"),
    ],
)
def test_the_contract_is_enforced(made_bundle: Path, inputs: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        exporter.open_artifact(made_bundle / "trace.pt")(**inputs)


def test_duplicate_and_extra_inputs_are_refused(made_bundle: Path) -> None:
    artifact = exporter.open_artifact(made_bundle / "trace.pt")
    with pytest.raises(ContractError, match="given twice"):
        artifact(PAIR["ids"], PAIR["mask"], ids=PAIR["ids"])
    with pytest.raises(ContractError, match="3 inputs given"):
        artifact(PAIR["ids"], PAIR["mask"], PAIR["mask"])


def test_an_altered_artifact_is_refused(bundle: Path) -> None:
    data = bytearray((bundle / "trace.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / "trace.pt").write_bytes(data)
    with pytest.raises(ArtifactError, match="SHA-256 differs"):
        exporter.open_artifact(bundle / "trace.pt")
    exporter.open_artifact(bundle / "script.pt")


def test_an_artifact_away_from_its_bundle(bundle: Path, tmp_path: Path) -> None:
    alone = (bundle / "trace.pt").rename(tmp_path / "alone.pt")
    assert exporter.open_artifact(alone).contract.target == "trace"


def reversing(target: Any) -> SimpleNamespace:
    """Return another package's target: like `target`, but its artifact is `their.model`, with the bytes reversed."""

    def restored(path: Path) -> Path:
        file = path.with_name("restored.pt")
        file.write_bytes(path.read_bytes()[::-1])
        return file

    return SimpleNamespace(
        artifact="their.model",
        variants=("",),
        precisions=("fp32",),
        requires=target.requires,
        native=False,
        needs_program=False,
        export=target.export,
        read_contract=lambda path: dataclasses.replace(target.read_contract(restored(path)), target="theirs"),
        load=lambda path, options: target.load(restored(path), options),
    )


@pytest.mark.parametrize("name", ["their.model", "their.pt"], ids=["by its suffix", "by the manifest"])
def test_a_target_of_another_package_reads_its_own_contract(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "their_target", reversing(targets.get("trace")))
    point = EntryPoint("theirs", "their_target", _plugins.GROUP)
    monkeypatch.setattr(_plugins, "entry_points", lambda group: [point])
    file = (tmp_path if name == "their.model" else bundle) / name
    file.write_bytes((bundle / "trace.pt").read_bytes()[::-1])
    manifest = bundles.read_manifest(bundle)
    row = dataclasses.replace(manifest.variants[0], target="theirs", artifact=bundles.record(file), companions=())
    republish(bundle, dataclasses.replace(manifest, variants=(row,)))
    artifact = exporter.open_artifact(file)
    assert artifact.contract.target == "theirs"
    assert artifact(**PAIR)["pooled"].shape == (2, 4)


@pytest.mark.parametrize("claims", ["theirs", "trace", "raises"])
def test_a_target_of_another_package_does_not_claim_our_artifacts(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: str
) -> None:
    """The other target has our suffix, is first alphabetically, and reads a contract from any file."""

    def read_contract(path: Path) -> Contract:
        if claims == "raises":
            raise ValueError("of another form")
        return dataclasses.replace(targets.get("trace").read_contract(path), target=claims)

    greedy = reversing(targets.get("trace"))
    greedy.artifact, greedy.read_contract = "theirs.pt", read_contract
    monkeypatch.setitem(sys.modules, "their_target", greedy)
    point = EntryPoint("a-target", "their_target", _plugins.GROUP)
    monkeypatch.setattr(_plugins, "entry_points", lambda group: [point])
    alone = (bundle / "trace.pt").rename(tmp_path / "alone.pt")
    artifact = exporter.open_artifact(alone)
    assert artifact.contract.target == "trace"
    assert artifact(**PAIR)["pooled"].shape == (2, 4)


def test_files_that_are_not_artifacts_are_refused(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "weights.pt")
    with pytest.raises(ArtifactError, match="carries no contract"):
        exporter.open_artifact(tmp_path / "weights.pt")
    (tmp_path / "golden.safetensors").write_bytes(b"no archive")
    with pytest.raises(ArtifactError, match="neither an archive of torch nor an ONNX model") as raised:
        exporter.open_artifact(tmp_path / "golden.safetensors")
    assert raised.value.remedy.startswith("open a file that `exporter export` wrote")
    with pytest.raises(ArtifactError):
        exporter.open_artifact(tmp_path / "missing.onnx")


def test_a_folder_is_refused(made_bundle: Path) -> None:
    with pytest.raises(ArtifactError, match=rf"^{made_bundle} is a directory$") as raised:
        exporter.open_artifact(made_bundle)
    assert raised.value.remedy == "give the path of an artifact in it, such as trace.pt"


FORKED = """
import os, sys, torch, exporter

torch.set_num_threads(2)
artifact = exporter.open_artifact(sys.argv[1])
given = {"ids": torch.zeros(2, 3, dtype=torch.int64), "mask": torch.ones(2, 3)}

def in_child(threads):
    sys.stdout.flush()
    if child := os.fork():
        return os.waitpid(child, 0)
    torch.set_num_threads(threads)
    try:
        print(list(artifact(**given)))
    except exporter.ExporterError as error:
        print(f"{error}; {error.remedy}")
    sys.stdout.flush()
    os._exit(0)

in_child(2)
artifact(**given)
in_child(2)
in_child(1)
artifact(**given)
"""


@pytest.mark.parametrize("file", ["trace.pt", "model.onnx"])
def test_a_process_that_was_forked_after_a_call_is_told(made_bundle: Path, tmp_path: Path, file: str) -> None:
    """Its call would never return. Before a call, with one thread and in onnxruntime, forks are fine."""
    (tmp_path / "script.py").write_text(FORKED)
    command = [sys.executable, str(tmp_path / "script.py"), str(made_bundle / file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = "this process was forked after a call of an artifact, and torch's threads do not survive that; "
    told += "fork before the first call, or call torch.set_num_threads(1) here"
    names = "['hidden', 'pooled', 'best']"
    assert done.stdout.splitlines() == [names, told if file == "trace.pt" else names, names]


def test_a_device_of_torch(made_bundle: Path) -> None:
    assert exporter.open_artifact(made_bundle / "trace.pt", device=torch.device("cpu")).device == "cpu"


def test_another_device_is_refused(made_bundle: Path) -> None:
    with pytest.raises(ContractError, match="exported for cpu, not for cuda"):
        exporter.open_artifact(made_bundle / "trace.pt", device="cuda")
    with pytest.raises(UsageError, match="there is no device 'gpu'"):
        exporter.open_artifact(made_bundle / "trace.pt", device="gpu")


def test_the_manifest_and_the_artifacts_have_the_same_contracts(made_bundle: Path) -> None:
    manifest = bundles.read_manifest(made_bundle)
    for variant in manifest.variants:
        assert variant.artifact
        contract = exporter.open_artifact(made_bundle / variant.artifact.path).contract
        assert contract == dataclasses.replace(variant.contract, target=variant.target)  # type: ignore[type-var]


def test_failures_are_reported(tmp_path: Path) -> None:
    """This also tests that targets may be a list."""

    def inputs(batch: int = 1) -> dict[str, torch.Tensor]:
        return {"nothing": torch.ones(batch, 8)}

    bundle = exporter.export(torch.nn.Linear(8, 4), inputs, targets=["trace"], bench=False, out=tmp_path / "out")
    assert set(bundle.failed) == {"trace"}
    assert "nothing" in bundle.failed["trace"]
    assert "manifest" not in repr(bundle)
