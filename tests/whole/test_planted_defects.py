"""Defects planted on purpose are caught in Python and in C++; correct artifacts raise no alarm."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exporter_models import minilm
from support.commands import Cli

from exporter.core import environment, inference, probing, tolerances
from exporter.core.contract_records import Contract
from exporter.core.json_codec import to_json
from exporter.core.size_range import Range
from exporter.evidence import golden, make_golden, parity
from exporter.model import flattening
from exporter.model.tensors import Tensors
from exporter.workers.session.server import Judge

Export = Callable[..., tuple[int, dict[str, Any]]]
RECIPES = Path(__file__).parents[1] / "recipes"


class TwoHeads(torch.nn.Module):
    """Two outputs of one shape, so that a swap shows in the values alone."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"left": self.left(x), "right": self.right(x)}


class Subject:
    """A model with its golden; `check` judges any module that should be equal to it."""

    def __init__(self, model: torch.nn.Module, inputs: Callable[..., dict[str, torch.Tensor]], folder: Path) -> None:
        self.model, self.folder = model, folder
        self.symbols = {"batch": Range(1, 8)}
        base = {"batch": 1}

        def flat(sizes: dict[str, int], seed: int) -> Tensors:
            torch.manual_seed(seed)
            return flattening.flatten_inputs(model, inputs(**sizes)).tensors

        example = flattening.flatten_inputs(model, inputs(**base))
        self.example = flat({"batch": 2}, 0)
        self.names = example.names
        self.flatten = lambda module: flattening.FlatModule(module, example).eval()
        plan = make_golden.Plan(probing.probe_plan(base, self.symbols), self.symbols)
        tolerance = tolerances.of_outputs(())
        self.golden, _ = make_golden.make(self.flatten(model), flat, plan, tolerance, "cpu")
        golden.save(self.golden, folder / "golden.safetensors")
        with torch.no_grad():
            self.outputs, values = flattening.output_leaves(model(**inputs(**base)))
            moved = flattening.output_leaves(model(**inputs(batch=3)))[1]
        gave = [({"batch": b}, flattening.specs(self.outputs, v)) for b, v in ((1, values), (3, moved))]
        took = [({"batch": b}, flattening.specs(self.names, flat({"batch": b}, 0))) for b in (1, 3)]
        takes, gives = (inference.infer_shapes(seen, self.symbols) for seen in (took, gave))
        self.contract = Contract("subject", takes, gives, self.symbols, "trace")

    def verdict(self, defective: torch.nn.Module) -> str:
        judge = Judge(self.golden, self.outputs)
        run = _without_grad(defective)
        return parity.summarize([judge.check(run, case, "cpu") for case in self.golden.cases]).verdict

    def native_exit_code(self, defective: torch.nn.Module) -> int:
        path = self.folder / "defect.pt"
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from tracing
            traced = torch.jit.trace(defective, self.example, strict=False, check_trace=False)
        torch.jit.save(traced, str(path), _extra_files={"contract.json": to_json(self.contract)})
        runner = environment.find_runner()
        assert runner is not None, "build exporter-run first: make cpp"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        words = [str(runner), "verify", str(path), "--sha256", digest]
        return subprocess.run(words, capture_output=True, check=False).returncode


def _without_grad(module: torch.nn.Module) -> Callable[[Tensors], Tensors]:
    def run(inputs: Tensors) -> Tensors:
        with torch.no_grad():
            return module(*inputs)

    return run


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(minilm.load("pretrained").eval(), minilm.inputs, tmp_path_factory.mktemp("minilm"))


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    torch.manual_seed(0)
    inputs = lambda batch=1: {"x": torch.randn(batch, 8)}  # noqa: E731
    return Subject(TwoHeads().eval(), inputs, tmp_path_factory.mktemp("heads"))


class Altered(torch.nn.Module):
    """A flat module whose outputs are changed by a function."""

    def __init__(self, module: torch.nn.Module, change: Callable[[Tensors], Tensors]) -> None:
        super().__init__()
        self.module, self.change = module, change

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        return self.change(self.module(*tensors))


class Halved(torch.nn.Module):
    """Computes in float16 and returns float32."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module.half()

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        return tuple(t.float() for t in self.module(*(t.half() if t.is_floating_point() else t for t in tensors)))


def dropout_left_on(subject: Subject) -> torch.nn.Module:
    module = subject.flatten(copy.deepcopy(subject.model))
    return module.train()


def weight_changed_by_one_percent(subject: Subject) -> torch.nn.Module:
    model = copy.deepcopy(subject.model)
    weight = next(p for n, p in model.named_parameters() if p.dim() == 2 and ("output.dense" in n or "left" in n))
    with torch.no_grad():
        weight.mul_(1.01)
    return subject.flatten(model)


def half_precision(subject: Subject) -> torch.nn.Module:
    return Halved(subject.flatten(copy.deepcopy(subject.model)))


def outputs_swapped(subject: Subject) -> torch.nn.Module:
    return Altered(subject.flatten(subject.model), lambda outputs: (outputs[1], outputs[0]))


def one_nan(subject: Subject) -> torch.nn.Module:
    def poison(outputs: Tensors) -> Tensors:
        first = outputs[0].clone()
        first[-1, 0] = float("nan")
        return (first, *outputs[1:])

    return Altered(subject.flatten(subject.model), poison)


PLANTED = [
    ("encoder", dropout_left_on),
    ("encoder", weight_changed_by_one_percent),
    ("encoder", half_precision),
    ("encoder", one_nan),
    ("heads", outputs_swapped),
    ("heads", weight_changed_by_one_percent),
    ("heads", half_precision),
    ("heads", one_nan),
]


@pytest.mark.parametrize(("model", "plant"), PLANTED, ids=[f"{m}-{p.__name__}" for m, p in PLANTED])
def test_planted_defect_is_caught(
    model: str, plant: Callable[[Subject], torch.nn.Module], request: pytest.FixtureRequest
) -> None:
    subject: Subject = request.getfixturevalue(model)
    defective = plant(subject)
    assert subject.verdict(defective) == "FAIL"
    assert subject.native_exit_code(defective) == 1


@pytest.mark.parametrize("model", ["encoder", "heads"])
def test_honest_module_passes(model: str, request: pytest.FixtureRequest) -> None:
    subject: Subject = request.getfixturevalue(model)
    honest = subject.flatten(subject.model)
    assert subject.verdict(honest) == "exact"
    assert subject.native_exit_code(honest) == 0


@pytest.fixture
def export(cli: Cli, tmp_path: Path) -> Export:
    """A function that exports to `b` and returns the exit code and the manifest."""

    def act(model: str, targets_text: str, *sizes: str) -> tuple[int, dict[str, Any]]:
        weights = "pretrained" if model == "minilm" else "random"
        options = [
            "--targets",
            targets_text,
            "--threads",
            "1",
            "--no-bench",
            "--weights",
            weights,
            "--out",
            tmp_path / "b",
        ]
        done = cli("export", model, *options, *(word for size in sizes for word in ("--size", size)), "--json", "-q")
        return done.code, json.loads(done.out or "{}")

    return act


def test_baked_branch_is_caught(export: Export) -> None:
    code, manifest = export(f"{RECIPES}/defects.py:branch", "trace,script")
    trace, script = manifest["variants"]
    assert code == 1
    assert trace["status"] == "failed"
    assert "a branch depends on values" in trace["reason"]
    assert script["parity"]["verdict"] in ("exact", "rounding")


def test_loop_over_the_batch_is_caught_and_named(export: Export) -> None:
    code, manifest = export(f"{RECIPES}/defects.py:loop", "trace")
    record = manifest["variants"][0]
    assert code == 1
    assert record["status"] == "failed"
    assert "batch is fixed at 2" in record["reason"]


@pytest.mark.parametrize(
    ("model", "targets_text", "sizes"),
    [
        ("minilm", "trace,script,onnx", ("batch=1..8", "sequence=1..64")),
        ("resnet18", "trace,script,onnx", ("batch=1..2",)),
        ("hf:vit", "trace", ("batch=1..8",)),
    ],
)
def test_honest_artifacts_raise_no_alarm(model: str, targets_text: str, sizes: tuple[str, ...], export: Export) -> None:
    code, manifest = export(model, targets_text, *sizes)
    reasons = {v["name"]: v["reason"] for v in manifest["variants"]}
    assert code == 0, reasons
    for variant in manifest["variants"]:
        assert variant["parity"]["verdict"] in ("exact", "rounding"), variant["name"]


def test_a_model_that_changes_its_input_raises_no_alarm(export: Export) -> None:
    """Sessions in Python and C++ call the example before they check it."""
    code, manifest = export(f"{RECIPES}/tiny.py:in_place", "trace,export")
    assert code == 0
    assert {session["parity"]["verdict"] for v in manifest["variants"] for session in v["sessions"]} == {"exact"}
    assert manifest["golden"]["repeatable"]
