"""Releases: the file and its errors, keys and resuming, gates, and killed runs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import junitparser
import pytest
from support import releases
from support.archives import tree
from support.commands import RECIPES, ROOT, Cli, start_cli
from support.manifests import timing, variant
from support.processes import children, gone, wait_for
from support.releases import planned

from exporter.bundle import integrity
from exporter.core import environment, filesystem
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError, BundleError, UsageError
from exporter.core.parity_records import Parity
from exporter.core.progress import Listener
from exporter.core.records import SCHEMA, ArtifactRecord, Manifest, MetricRecord, SessionRecord
from exporter.core.size_range import Range
from exporter.model import recipes
from exporter.release import executor, file, formats, gates, junit, keys, plan, run, schema
from exporter.release.plan import Gates
from exporter.runs.request import Request

MODELS = '[[models]]\nmodel = "bert"\n'
HUB = '[[models]]\nmodel = "hf:bert"\n'


def test_init_writes_a_valid_file_and_does_not_overwrite_one(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    assert cli("release", "--init", path).code == 0
    done = cli("release", path, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert "bert/cpu/compile@bf16" in done.out
    again = cli("release", "--init", path)
    assert (again.code, "File exists" in again.err) == (2, True)


def test_the_commented_settings_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "release.toml"
    commented = re.sub(r"^# (?=\w+ = )", "", file.template(), flags=re.MULTILINE)
    path.write_text(commented.replace("bench = false", "bench = true"))
    assert len(file.read(path).data) > len(tomllib.loads(file.template()))


def test_the_example_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    steps, warnings = plan.make(file.read(Path("release.toml")), tmp_path)
    assert (len(steps), warnings) == (3 * 4 * 2, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out = 3\n" + MODELS, "release.toml:1: out: 3 is not of type 'string'"),
        ('targts = ["trace"]\n' + MODELS, "release.toml:1: targts: unknown key; did you mean targets?"),
        ("out = 'x'\n", "release.toml:1: 'models' is a required property"),
        (MODELS + "[models.gates]\nmax_p99 = 3", "release.toml:4: models[0].gates.max_p99: unknown key"),
        (MODELS + MODELS + "gates.parity = 'bad'", "release.toml:5: models[1].gates.parity: 'bad' is not one of"),
        (MODELS + "targets = [\n'trace',\n7]", "release.toml:3: models[0].targets[1]: 7 is not of type"),
        (MODELS + "devices = ['gpu']", "release.toml:3: models[0].devices[0]: 'gpu' does not match"),
        (MODELS + "sizes = [{'../x' = 2}]", "release.toml:3: models[0].sizes[0]: '../x' does not match"),
        (MODELS + "sizes = [{batch = 2.0}]", "release.toml:3: models[0].sizes[0].batch: 2.0 is not of type 'integer'"),
        (MODELS + "name = '../x'", "release.toml:3: models[0].name: '../x' does not match"),
        ("a = 1\nb = ", "release.toml:2: Invalid value"),
        ("a = " + "[" * 3000, "release.toml: too deeply nested"),
        ("timeout = inf\n" + MODELS, "release.toml:1: timeout: inf is not a finite number"),
        (MODELS + "gates = {max_mb = nan}", "release.toml:3: models[0].gates.max_mb: nan is not a finite number"),
        ('targets = ["trase"]\n' + MODELS, "release.toml:1: targets: there is no target 'trase'"),
        ('[[models]]\nmodel = "bort"', "release.toml:2: models[0].model: there is no model 'bort'"),
        (MODELS + "checkpoint = 'gone.pt'", "release.toml:3: models[0].checkpoint: there is no file gone.pt"),
        (
            "bench = false\n[gates]\nmax_p99_ms = 3\n" + MODELS,
            "release.toml:3: gates.max_p99_ms: bench is false in line 1",
        ),
        (
            "[gates]\nmax_p99_ms = 3\n" + MODELS + MODELS + "bench = false",
            "release.toml:2: gates.max_p99_ms: bench is false in line 7, so models[1] is not timed",
        ),
        ("[gates]\nover = 'tract'\n" + MODELS, "release.toml:2: gates.over: there is no bert/cpu/tract"),
        (MODELS + MODELS, "release.toml:4: models[1].model: bert/cpu/trace is already defined by line 1"),
        (MODELS + "ranges = {batch = [8, 1]}", "release.toml:3: models[0].ranges.batch: the range 8 to 1 is empty"),
        ("[ranges]\nbatch = [8, 1]\n" + MODELS, "release.toml:2: ranges.batch: the range 8 to 1 is empty"),
        (MODELS + "devices = ['cpu', 'cpu']", "release.toml:3: models[0].devices: ['cpu', 'cpu'] has non-unique"),
        (
            MODELS + "sizes = [{batch = 1}, {batch = 1}]",
            "release.toml:3: models[0].sizes: [{'batch': 1}, {'batch': 1}] ",
        ),
        (
            MODELS + "sizes = [{batch = 1}, {batch = 99}]\nranges = {batch = [1, 64]}",
            "release.toml:3: models[0].sizes: batch is 99, which is outside its range, 1 to 64",
        ),
        (
            "ranges = {height = [32, 64, 16]}\nsizes = [{height = 40}]\n" + HUB,
            "release.toml:2: sizes: height is 40, which is outside its range, 32 to 64, multiples of 16",
        ),
        (
            "ranges = {batch = [1, 8]}\nentries = ['length=3', 'batch=4,9']\ntargets = ['compile']\n" + HUB,
            "release.toml:2: entries: --entries asks for batch = 9, which is outside the range of batch, 1 to 8",
        ),
        (MODELS + "sizes = [{batch = 1}, {width = 2}]", "release.toml:3: models[0].sizes: inputs() takes no width"),
        (MODELS + "sizes = [{batch = 99}]", "release.toml:3: models[0].sizes: batch is 99, which is outside its range"),
        (MODELS + "ranges = {width = [1, 2]}", "release.toml:3: models[0].ranges: inputs() takes no width"),
        (MODELS + "dynamic = 'width'", "release.toml:3: models[0].dynamic: inputs() takes no width"),
        (MODELS + "entries = ['width=1']", "release.toml:3: models[0].entries: --entries names width, which is not"),
        (MODELS + "entries = ['batch=99']", "release.toml:3: models[0].entries: --entries asks for batch = 99, which"),
        (
            MODELS + "entries = {batch = [1]}",
            'release.toml:3: models[0].entries: must be a list of text, such as ["batch=1,8"]',
        ),
        (MODELS + "entries = [{batch = 1}]", "release.toml:3: models[0].entries: must be a list of text, such as ["),
        (MODELS + "precisions = ['tf32']", "release.toml:2: models[0].model: tf32 needs an NVIDIA GPU"),
    ],
)
def test_errors_name_the_line_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        planned(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/{message}")


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ("class mlp: ...", True),
        ("def mlp(): ...\ndef late(): ...", True),
        ("import torch\nlate = torch.nn.ReLU", False),
        ("from torch.nn import ReLU as late", False),
        ("for late in (1, 2): ...", False),
        ("from library import *", False),
        ("globals()['la' + 'te'] = 1", False),
        ("def __getattr__(name): ...", False),
        ("for name in ('late',): vars()[name] = 1", False),
        ("class mlp: ...\nx = (", False),
        ("import zoo\nzoo.register(__name__)", False),
        ("import late.part", False),
        ("class mlp: ...\nif __name__ == '__main__':\n    print(mlp)", True),
    ],
)
def test_a_name_that_the_recipes_file_surely_lacks_is_refused(tmp_path: Path, code: str, refused: bool) -> None:
    """The file is not run, so a name that it may define is not refused before the step runs."""
    (tmp_path / "own.py").write_text(code)
    text = f"targets = ['trace']\n[[models]]\nmodel = '{tmp_path}/own.py:{'nix' if refused else 'late'}'\n"
    if not refused:
        assert len(planned(tmp_path, text)) == 1
        return
    with pytest.raises(UsageError, match=rf"toml:3: models\[0\]\.model: {tmp_path}/own\.py has no nix") as raised:
        planned(tmp_path, text)
    assert raised.value.remedy.startswith("it has mlp")


def test_settings_apply_to_the_steps_that_they_are_for(tmp_path: Path) -> None:
    text = """
        targets = ["trace", "compile", "compile:default", "onnx"]
        tune = 1.0
        entries = ["batch=1"]
        inductor = ["freezing=False"]
        fallback = ["aten.silu"]
        session_options = ["execution_mode=parallel"]
        graph_optimization = "basic"
        channels_last = true
        [[models]]
        model = "bert"
        """
    names = "tune", "entries", "inductor", "fallback", "session_options", "graph_optimization", "channels_last"
    default = Request("", recipes.find("bert"), (), tmp_path)
    found = {
        step.variant.name: {name for name in names if getattr(step.request, name) != getattr(default, name)}
        for step in planned(tmp_path, text)
    }
    assert found == {
        "trace": {"tune", "channels_last"},
        "compile": {"tune", "entries", "inductor", "fallback"},
        "compile:default": {"inductor"},
        "onnx": {"tune", "session_options", "graph_optimization"},
    }


def test_a_setting_that_no_target_of_a_model_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="toml:2: entries: --entries applies only to packages of the compile"
    ) as raised:
        planned(tmp_path, "targets = ['trace', 'onnx']\nentries = ['batch=1']\n" + MODELS)
    assert raised.value.remedy == "remove it, or add the target compile"


def test_all_errors_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        planned(tmp_path, "out = 3\nseed = 'x'\ntargets = ['trase']\n" + MODELS)
    assert [line.partition("toml")[2][:3] for line in str(raised.value).splitlines()] == [":1:", ":2:", ":3:"]


def test_a_model_overrides_the_top_level_settings(tmp_path: Path) -> None:
    text = """
        seed = 3
        targets = ["trace", "compile"]
        portable = true
        [gates]
        parity = "drift"
        max_mb = 5

        [[models]]
        model = "bert"
        targets = ["trace@int8"]
        devices = ["cpu", "cuda"]
        sizes = [{batch = 1}, {batch = 8, sequence = 16}]
        ranges = {batch = [1, 8]}

        [models.gates]
        parity = "quantized"

        [[models]]
        model = "resnet18"
        name = "small"
        """
    steps = planned(tmp_path, text)
    names = [step.name for step in steps]
    assert names == [
        "bert/cpu/batch=1/trace@int8", "bert/cpu/batch=8,sequence=16/trace@int8",
        "bert/cuda/batch=1/trace@int8", "bert/cuda/batch=8,sequence=16/trace@int8",
        "small/cpu/trace", "small/cpu/compile",
    ]  # fmt: skip
    first, last = steps[0], steps[-1]
    assert first.gates == Gates("quantized", max_mb=5)
    assert (last.gates.parity, last.request.portable, steps[-2].request.portable) == ("drift", True, False)
    assert (first.line, first.gate_lines["parity"], first.gate_lines["max_mb"]) == (9, 17, 7)
    assert (first.request.seed, first.request.ranges["batch"].max) == (3, 8)
    assert first.request.out == tmp_path / "out" / "bert/cpu/batch=1/trace@int8"
    assert pickle.loads(pickle.dumps(steps)) == steps, "steps can be pickled"


def test_commands_that_reproduce_a_step_use_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old net.pt").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = {
        "old net.pt": f"'{tmp_path}/old net.pt'", "hf:folder": f"hf:{tmp_path}/folder",
        "hf:~/folder": f"hf:{tmp_path}/folder", "hf:acme/bert": "hf:acme/bert", "timm:vit_tiny": "timm:vit_tiny",
    }  # fmt: skip
    for model, absolute in asked.items():
        (step,) = planned(tmp_path, f'targets = ["trace"]\n[[models]]\nmodel = "{model}"\nname = "net"\n')
        assert step.request.reproduce("trace").startswith(f"exporter export {absolute} --targets trace ")


def test_the_command_of_a_release_is_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    (step, *_) = planned(folder, MODELS)
    assert shlex.split(step.request.command) == ["exporter", "release", f"{folder}/release.toml"]


def test_the_command_of_a_release_names_the_chosen_steps(tmp_path: Path) -> None:
    path = tmp_path / "release.toml"
    path.write_text(MODELS + "targets = ['trace']")
    (step,), _ = plan.make(file.read(path), tmp_path / "out", ("bert/*", "x"))
    assert step.request.command == f"exporter release {path} --only 'bert/*' --only x"


def test_unsupported_precisions_are_skipped_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "release.toml").write_text('targets = ["script"]\nprecisions = ["fp32", "int8"]\n' + MODELS)
    steps, warnings = plan.make(file.read(tmp_path / "release.toml"), tmp_path)
    assert [step.name for step in steps] == ["bert/cpu/script"]
    assert "release.toml:1: targets: script does not support int8" in warnings[0]


EXACT, NATIVE = Parity("exact", 0, 0, 1, 1, ""), SessionRecord("native", "passed")


@pytest.mark.parametrize(
    ("wanted", "passed", "measured"),
    [
        (Gates(parity="rounding"), True, "exact"),
        (Gates(max_p99_ms=4.81), True, 4.8),
        (Gates(max_p99_ms=4.79), False, 4.8),
        (Gates(max_p99_ms=4.81, cpp=True), False, 6.0),
        (Gates(min_speedup=2.5), False, 2.475),
        (Gates(min_speedup=2.47), True, 2.475),
        (Gates(min_speedup=1.2, over="onnx"), True, 2.475 / 2.02),
        (Gates(min_speedup=1.23, over="onnx"), False, 2.475 / 2.02),
        (Gates(max_mb=1.2), False, 1.234567),
        (Gates(max_mb=1.3), True, 1.234567),
        (Gates(cpp=True), True, True),
        (Gates(min_metric=0.95), True, 0.95),
        (Gates(min_metric=0.96), False, 0.95),
        (Gates(max_metric_loss=0.02), True, 0.01),
        (Gates(max_metric_loss=0.005), False, 0.01),
    ],
)
def test_gates(wanted: Gates, passed: bool, measured: Any) -> None:
    """Gates apply to the faster session, or to C++ if it is required; the speed-up is its interval's lower end."""
    record = variant(sessions=(NATIVE,), timings={"python": timing(4.0), "native": timing(5.0)}, metric=0.95)
    over = gates.measure(variant("onnx", 5.0))
    first = gates.check(wanted, gates.measure(record, wanted.cpp, MetricRecord(0.96, 3)), over)[0]
    assert (first.passed, first.measured) == (passed, pytest.approx(measured))


@pytest.mark.parametrize("verdict", ["exact", "rounding", "drift", "quantized", "FAIL"])
def test_the_parity_gate_allows_better_verdicts(verdict: Any) -> None:
    found = gates.measure(variant(parity=replace(EXACT, verdict=verdict)))
    (one,) = gates.check(Gates(parity="drift"), found)
    assert one.passed == (verdict in ("exact", "rounding", "drift"))


@pytest.mark.parametrize(
    "wanted",
    [
        Gates(max_p99_ms=9),
        Gates(min_speedup=0.1),
        Gates(cpp=True),
        Gates("quantized"),
        Gates(min_metric=0.0),
        Gates(max_metric_loss=9.0),
    ],
)
def test_a_gate_without_a_measurement_fails(wanted: Gates) -> None:
    (one,) = gates.check(wanted, gates.measure(variant(median=None, parity=None)))
    assert not one.passed
    (other,) = gates.check(Gates(min_speedup=0.1, over="onnx"), gates.measure(variant()), None)
    assert other.text.startswith("not measured")
    assert "onnx has no timing: run its step too" in other.text


def test_a_contract_that_is_narrower_than_the_file_asks_fails() -> None:
    symbols = {"batch": Range(1, 8), "length": Range(2, 32)}
    record = variant(contract=Contract("net", (TensorSpec("x", "float32", ("batch", "length")),), (), symbols))
    assert gates.ranges({"batch": Range(2, 8), "length": Range(2, 32), "height": Range(9, 9)}, record) == ()
    (fixed,) = gates.ranges({"height": Range(1, 2)}, record)
    assert fixed.text == "the artifact fixes height, asked is 1 to 2"
    (one,) = gates.ranges({"batch": Range(1, 8), "length": Range(1, 32)}, record)
    assert (one.gate, one.passed) == ("ranges", False)
    assert one.text == "the artifact takes length 2 to 32, not 1 to 32"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A folder with a recipe file and the module next to it that it imports."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name in ("tiny.py", "recipes_shared.py"):
        shutil.copy(RECIPES / name, folder / name)
    return folder


def key_of(folder: Path, **changes: Any) -> str:
    text = f'bench = false\ntargets = ["trace"]\n[[models]]\nmodel = "{folder}/tiny.py:mlp"\n'
    (step,) = planned(folder.parent, text)
    return keys.key(replace(step.request, **changes))


def test_keys_change_with_what_a_bundle_depends_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(recipe)
    moved = tmp_path / "elsewhere" / "recipes"
    shutil.copytree(recipe, moved)
    (moved / "unrelated.py").write_text("x = 1")
    assert key_of(moved) == before, "the key does not depend on the folder"
    assert key_of(recipe, out=Path("/x"), timeout=9.0, command="other") == before
    library = tmp_path / "ops.so"
    library.touch()
    seen = {before, key_of(recipe, seed=1), key_of(recipe, sizes={"batch": 3}), key_of(recipe, bench=True)}
    seen |= {key_of(recipe, ops_libs=(str(library),))}
    (recipe / "recipes_shared.py").write_text((recipe / "recipes_shared.py").read_text() + "\nx = 1\n")
    seen |= {key_of(recipe)}
    (recipe / "tiny.py").write_text((recipe / "tiny.py").read_text() + "\nx = 1\n")
    seen |= {key_of(recipe)}
    keys._environment.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("exporter.core.environment.version", lambda name: "99")
        seen |= {key_of(recipe)}
    keys._environment.cache_clear()
    assert len(seen) == 8, "each of these keys is different"


def test_an_upgrade_of_the_compiler_changes_the_keys(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the compiler's path as it was."""
    compiler = tmp_path / "c++"
    monkeypatch.setenv("CXX", str(compiler))
    found = []
    for version in (13, 13, 14):
        compiler.write_text(f"#!/bin/sh\necho {version}\n")
        compiler.chmod(0o755)
        keys._environment.cache_clear()
        found.append(key_of(recipe))
    monkeypatch.undo()
    keys._environment.cache_clear()
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("written", "imports"),
    [("net.py", "from .layers import x"), ("net.py", "import layers"), ("deep/net.py", "from ..layers import x")],
)
def test_keys_change_with_a_recipes_own_package_only(tmp_path: Path, written: str, imports: str) -> None:
    recipe = tmp_path / "own" / written
    recipe.parent.mkdir(parents=True)
    for folder in {recipe.parent, tmp_path / "own"}:
        (folder / "__init__.py").touch()
    recipe.write_text(f"import others\n{imports}\nnet = None\n")
    layers, others = tmp_path / "own" / "layers.py", tmp_path / "others" / "__init__.py"
    others.parent.mkdir()
    found = []
    for ours, theirs in (("x = 1", "y = 1"), ("x = 1", "y = 2"), ("x = 2", "y = 2")):
        layers.write_text(ours)
        others.write_text(theirs)
        (step,) = planned(tmp_path, f'targets = ["trace"]\n[[models]]\nmodel = "{recipe}:net"\n')
        found.append(keys.key(step.request))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("read", "changed"),
    [
        ('importlib.import_module("layers")', "layers.py"),
        ('__import__("blocks.layers")', "blocks/layers.py"),
        ('__import__("layers")', "layers.py"),
        ('(importlib.import_module(name) for name in ("others", "layers"))', "layers.py"),
        ('(Path(__file__).parent / "words.txt").read_text()', "words.txt"),
        ('(Path(__file__).parent / "data/words.txt").read_text()', "data/words.txt"),
        ('open("FOLDER/words.txt").read()', "words.txt"),
    ],
)
def test_keys_change_with_what_a_string_in_a_recipe_names(tmp_path: Path, read: str, changed: str) -> None:
    recipe, named = tmp_path / "net.py", tmp_path / changed
    read = read.replace("FOLDER", str(tmp_path))
    lines = ("import importlib", "from pathlib import Path", "def net():", f"    return {read}")
    recipe.write_text("\n".join((f'"""{"A long text. " * 400}"""', *lines)))
    for folder in ("blocks", "data"):
        (tmp_path / folder).mkdir()
    found = []
    for content, other in (("x = 1", "y = 1"), ("x = 1", "y = 2"), ("x = 2", "y = 2")):
        named.write_text(content)
        (tmp_path / "unnamed.txt").write_text(other)
        (step,) = planned(tmp_path, f'targets = ["trace"]\n[[models]]\nmodel = "{recipe}:net"\n')
        found.append(keys.key(step.request))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("path", ["/proc/self/stat", "/dev/null", "a\0b", "x" * 5000])
def test_strings_that_name_no_kept_file_do_not_count(tmp_path: Path, path: str) -> None:
    recipe = tmp_path / "net.py"
    recipe.write_text(f"PLACE = {path!r}\n")
    assert keys._code(recipe) == [recipe]


def test_keys_change_with_a_module_of_a_package_without_init(tmp_path: Path) -> None:
    recipe = tmp_path / "net.py"
    recipe.write_text("from blocks.inner import layers\nnet = None\n")
    (tmp_path / "blocks/inner").mkdir(parents=True)
    found = set()
    for content in ("x = 1", "x = 2"):
        (tmp_path / "blocks/inner/layers.py").write_text(content)
        (step,) = planned(tmp_path, f'targets = ["trace"]\n[[models]]\nmodel = "{recipe}:net"\n')
        found.add(keys.key(step.request))
    assert len(found) == 2


def test_keys_change_with_a_module_imported_by_a_relative_name(tmp_path: Path) -> None:
    recipe = tmp_path / "own" / "net.py"
    recipe.parent.mkdir()
    recipe.write_text('import importlib\nlayers = importlib.import_module(".layers", __package__)\nnet = None\n')
    (recipe.parent / "__init__.py").touch()
    found = set()
    for content in ("x = 1", "x = 2"):
        (recipe.parent / "layers.py").write_text(content)
        (step,) = planned(tmp_path, f'targets = ["trace"]\n[[models]]\nmodel = "{recipe}:net"\n')
        found.add(keys.key(step.request))
    assert len(found) == 2


def test_keys_change_with_the_shards_of_a_checkpoint(recipe: Path, tmp_path: Path) -> None:
    index, shard = tmp_path / "model.safetensors.index.json", tmp_path / "one.safetensors"
    index.write_text('{"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}')
    found = []
    for content in ("x", "yy"):
        shard.write_text(content)
        (step,) = planned(
            tmp_path, f'targets = ["trace"]\n[[models]]\nmodel = "{recipe}/tiny.py:mlp"\ncheckpoint = "{index}"\n'
        )
        found.append(keys.key(step.request))
    assert found[0] != found[1]


TWELVE = """
bench = false
targets = ["trace", "script", "onnx"]
precisions = ["fp32", "bf16"]
[[models]]
model = "bert"
[[models]]
model = "resnet18"
"""


def release(folder: Path, text: str = TWELVE, resume: bool = True, only: str = "") -> list[run.Row]:
    steps = planned(folder, text)
    chosen = [step for step in steps if step.name.startswith(only)]
    return run.run(steps, chosen, folder / "out", resume, executor.Local(), Listener())


def rebuilt(rows: list[run.Row]) -> set[str]:
    return {row.step.name for row in rows if not row.kept}


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=releases.make))


@pytest.mark.usefixtures("no_models")
def test_a_resumed_release_builds_what_is_not_finished(tmp_path: Path) -> None:
    rows = release(tmp_path)
    assert all(row.passed for row in rows)
    assert len(rebuilt(rows)) == releases.begun(tmp_path / "out") == 12
    rows = release(tmp_path)
    assert all(row.passed for row in rows)
    assert (rebuilt(rows), releases.begun(tmp_path / "out")) == (set(), 12)
    (tmp_path / "out" / "bert/cpu/trace/trace.pt").write_text("altered")
    (tmp_path / "out" / "bert/cpu/onnx/manifest.json").write_text("{}")
    shutil.rmtree(tmp_path / "out" / "resnet18/cpu/script@bf16")
    assert rebuilt(release(tmp_path)) == {"bert/cpu/trace", "bert/cpu/onnx", "resnet18/cpu/script@bf16"}
    assert len(rebuilt(release(tmp_path, resume=False))) == 12


def test_a_recipe_that_does_not_load_leaves_the_command_that_shows_why(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "release.toml"
    broken = RECIPES / "broken.py"
    path.write_text(f"out = 'out'\nbench = false\ntargets = ['trace']\n[[models]]\nmodel = '{broken}:load_fails'\n")
    done = cli("release", path, "--format", "json", "--junit", tmp_path / "junit.xml")
    (step,) = json.loads(done.out)["steps"]
    assert (done.code, step["bundle"]) == (1, None)
    assert "loading the model fails" in step["reason"]
    assert step["reproduce"].startswith(f"exporter export {broken}:load_fails --targets trace")
    assert step["reproduce"].endswith("-v")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["release.json"]
    assert "exporter export " in (tmp_path / "junit.xml").read_text()
    again = cli(*shlex.split(step["reproduce"])[1:])
    assert (again.code, "Traceback" in again.err) == (2, True)


TWO_STEPS = "bench = false\ntargets = ['trace', 'script']\n[[models]]\nmodel = '{recipe}:mlp'\n"


@pytest.mark.parametrize("edited", ["mlp/cpu/trace", "mlp/cpu/script"])
def test_a_recipe_that_changes_while_a_step_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path, edited: str
) -> None:
    """That step fails, and those that would begin afterwards do not; the last good bundles stay in their places."""
    recipe = recipe / "tiny.py"
    text, before = TWO_STEPS.format(recipe=recipe), recipe.read_text()
    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=releases.make))
    assert all(row.passed for row in release(tmp_path, text))
    manifests = {place: place.read_bytes() for place in (tmp_path / "out").rglob("manifest.json")}

    def make(request: Request, *_: object) -> tuple[Manifest, Path]:
        if f"mlp/cpu/{request.variants[0].name}" == edited:
            recipe.write_text(before + "\n# another\n")
        return releases.make(request)

    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=make))
    rows = release(tmp_path, text, resume=False)
    failed = {"mlp/cpu/trace": {"mlp/cpu/trace", "mlp/cpu/script"}, "mlp/cpu/script": {"mlp/cpu/script"}}[edited]
    assert {row.step.name for row in rows if row.reason == executor.CHANGED} == failed
    assert {row.step.name for row in rows if row.passed} == {row.step.name for row in rows} - failed
    assert [row.place for row in rows if row.step.name == edited] == [tmp_path / "out" / f"{edited}.failed"]
    assert (tmp_path / "out" / edited / "manifest.json").read_bytes() == manifests[
        tmp_path / "out" / edited / "manifest.json"
    ]
    assert releases.begun(tmp_path / "out") == (3 if edited == "mlp/cpu/trace" else 4)
    for form in ("table", "md", "json"):
        assert executor.CHANGED in formats.render(rows, form, Path("release.toml"), tmp_path)
    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=releases.make))
    rows = release(tmp_path, text)
    assert (rebuilt(rows), all(row.passed for row in rows)) == ({"mlp/cpu/trace", "mlp/cpu/script"}, True)
    assert rebuilt(release(tmp_path, text)) == set()


def test_a_recipe_that_changes_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    """The second step does not begin, even if the recipe is as before when the release ends."""
    recipe = recipe / "tiny.py"
    text, before = TWO_STEPS.format(recipe=recipe), recipe.read_text()
    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=releases.make))
    perform = executor.perform

    def edited(step: plan.Step, *arguments: object, **named: object) -> executor.Outcome:
        recipe.write_text(before + ("\n# another\n" if step.variant.name == "script" else ""))
        outcome = perform(step, *arguments, **named)  # type: ignore[arg-type]
        recipe.write_text(before)
        return outcome

    monkeypatch.setattr(executor, "perform", edited)
    first, second = release(tmp_path, text)
    assert (first.passed, second.reason, second.remedy) == (True, executor.CHANGED, executor.AGAIN)
    assert releases.begun(tmp_path / "out") == 1
    monkeypatch.setattr(executor, "perform", perform)
    assert rebuilt(release(tmp_path, text)) == {"mlp/cpu/script"}


def test_a_recipe_that_makes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    """The file that the recipe names is no change when it appears, but it is part of the key from then on."""
    recipe = recipe / "tiny.py"
    recipe.write_text(recipe.read_text() + "\nCACHE = 'weights.bin'\n")
    text = TWO_STEPS.format(recipe=recipe)

    def make(request: Request, *_: object) -> tuple[Manifest, Path]:
        (recipe.parent / "weights.bin").touch()
        return releases.make(request)

    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=make))
    assert [row.passed for row in release(tmp_path, text)] == [True, True]
    assert rebuilt(release(tmp_path, text)) == {"mlp/cpu/trace", "mlp/cpu/script"}
    assert rebuilt(release(tmp_path, text)) == set()


def test_another_version_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    describe = environment.describe

    def make(request: Request, *_: object) -> tuple[Manifest, Path]:
        monkeypatch.setattr(environment, "describe", lambda *names: describe(*names) | {"torch": "99"})
        return releases.make(request)

    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=make))
    rows = release(tmp_path, TWO_STEPS.format(recipe=recipe / "tiny.py"))
    assert [row.reason for row in rows] == [executor.CHANGED] * 2
    monkeypatch.undo()
    keys._environment.cache_clear()


@pytest.mark.parametrize("name", ["provenance.json", "SHA256SUMS", "bom.cdx.json", "logs/trace.log"])
def test_a_bundle_with_altered_proofs_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def sealed(request: Request, *_: object) -> tuple[Manifest, Path]:
        made, place = releases.make(request)
        (place / "logs" / "trace.log").write_text("all is well")
        integrity.seal(place, made, ())
        return made, place

    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=sealed))
    text = 'targets = ["trace"]\n' + MODELS
    release(tmp_path, text)
    assert rebuilt(release(tmp_path, text)) == set()
    path = tmp_path / "out" / "bert/cpu/trace" / name
    path.write_text(path.read_text() + " ")
    assert rebuilt(release(tmp_path, text)) == {"bert/cpu/trace"}


@pytest.mark.usefixtures("no_models")
def test_a_model_of_the_same_name_from_another_library_is_rebuilt(tmp_path: Path) -> None:
    text = 'targets = ["trace"]\n[[models]]\nmodel = "{}:resnet18"\n'
    for library in ("torchvision", "timm"):
        for made in ({"resnet18/cpu/trace"}, set()):
            assert rebuilt(release(tmp_path, text.format(library))) == made


@pytest.mark.usefixtures("no_models")
def test_other_files_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    mine = tmp_path / "out" / "resnet18/cpu/onnx@bf16" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(BundleError, match="contains files but is not a bundle"):
        release(tmp_path)
    assert releases.begun(tmp_path / "out") == 0
    assert len(release(tmp_path, only="bert/")) == 6, "the file is in no selected step's directory"


@pytest.mark.usefixtures("no_models")
def test_a_change_rebuilds_what_depends_on_it(tmp_path: Path) -> None:
    release(tmp_path)
    made = rebuilt(release(tmp_path, TWELVE + "seed = 5\n"))
    assert len(made) == 6
    assert all(name.startswith("resnet18/") for name in made)
    rows = release(tmp_path, TWELVE + "seed = 5\ngates.max_mb = 0.00001\n")
    assert rebuilt(rows) == set(), "a changed gate is judged again without rebuilding"
    assert [row.passed for row in rows] == [True] * 6 + [False] * 6


@pytest.mark.usefixtures("no_models")
def test_a_bundle_that_fails_its_gates_does_not_replace_the_last_one(tmp_path: Path) -> None:
    text = f"targets = ['trace']\n[gates]\nmax_mb = {{}}\n{MODELS}"
    (first,) = release(tmp_path, text.format(5), only="bert/")
    place = first.step.request.out
    artifact = place / "trace.pt"
    good = artifact.stat().st_ino
    for _ in range(2):
        (row,) = release(tmp_path, text.format(0.00001), resume=False, only="bert/")
        assert (row.passed, row.place) == (False, place.with_name("trace.failed"))
        assert artifact.stat().st_ino == good
        assert integrity.whole(row.place).variants
    (again,) = release(tmp_path, text.format(5), only="bert/")
    assert (again.passed, again.kept, again.place) == (True, False, place)
    assert artifact.stat().st_ino != good
    assert sorted(path.name for path in place.parent.iterdir() if path.is_dir()) == ["trace", "trace.failed"]


@pytest.mark.usefixtures("no_models")
def test_an_error_while_one_step_is_settled_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every last bundle is back in its place, and each row has the failure of its gate and its error."""
    text = f"targets = ['trace', 'onnx', 'script', 'export']\n[gates]\nmax_mb = {{}}\n{MODELS}"
    places = [row.step.request.out for row in release(tmp_path, text.format(5), only="bert/")]
    good = [(place / "trace.pt").stat().st_ino for place in places]
    trace, onnx, script, export = places
    foreign = trace.with_name("trace.failed")
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if (self.name, target.name) in (("script", ".script.failed"), (".onnx.failed", "onnx.failed")):
            raise PermissionError(errno.EACCES, "Permission denied", str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    rows = release(tmp_path, text.format(0.00001), resume=False, only="bert/")
    assert not any(row.passed for row in rows)
    assert "max_mb: " in rows[0].reason
    assert (
        f"contains files but is not a bundle; the new bundle is in {trace.with_name('.trace.failed')}" in rows[0].reason
    )
    assert [row.place for row in rows] == [
        trace.with_name(".trace.failed"),
        onnx.with_name(".onnx.failed"),
        script,
        export.with_name("export.failed"),
    ]
    assert ["permission denied" in row.reason for row in rows] == [False, True, True, False]
    stays = [(place / "trace.pt").stat().st_ino for place in places]
    assert [a == b for a, b in zip(stays, good, strict=True)] == [True, True, False, True]
    monkeypatch.undo()
    assert (script.with_name(".script.last") / "trace.pt").stat().st_ino == good[2], "it is held for the next release"


@pytest.mark.usefixtures("no_models")
def test_the_place_of_a_bundle_may_be_a_link(tmp_path: Path) -> None:
    text = f"targets = ['trace']\n[gates]\nmax_mb = {{}}\n{MODELS}"
    (first,) = release(tmp_path, text.format(5), only="bert/")
    place, real = first.step.request.out, tmp_path / "real"
    place.rename(real)
    place.symlink_to(real)
    good = (real / "trace.pt").stat().st_ino
    (row,) = release(tmp_path, text.format(0.00001), resume=False, only="bert/")
    assert (row.passed, row.place) == (False, real.with_name("real.failed"))
    assert (place.readlink(), (real / "trace.pt").stat().st_ino) == (real, good)
    (again,) = release(tmp_path, text.format(5), resume=False, only="bert/")
    assert (again.passed, again.place, place.readlink()) == (True, place, real)
    assert (real / "trace.pt").stat().st_ino != good
    assert not real.with_name(".real.last").exists()


@pytest.mark.usefixtures("no_models")
def test_the_last_bundle_of_a_killed_release_is_restored(tmp_path: Path) -> None:
    """The run was killed before the new bundle's gates were judged, or while the last bundle was restored."""
    text = f"targets = ['trace']\n[gates]\nmax_mb = {{}}\n{MODELS}"
    (first,) = release(tmp_path, text.format(5), only="bert/")
    place = first.step.request.out
    good = (place / "trace.pt").stat().st_ino
    held = place.with_name(".trace.last")
    for leave in (lambda: shutil.copytree(place, held, copy_function=os.link), lambda: place.rename(held)):
        leave()
        release(tmp_path, text.format(0.00001), resume=False, only="bert/")
        assert (place / "trace.pt").stat().st_ino == good
        assert not held.exists()


@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize("killed", [False, True])
def test_a_release_interrupted_while_it_holds_the_last_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """A release that is killed removes nothing any more."""
    text = f"targets = ['trace']\n[gates]\nmax_mb = {{}}\n{MODELS}"
    (first,) = release(tmp_path, text.format(5), only="bert/")
    place = first.step.request.out
    files, good, link = tree(place), (place / "trace.pt").stat().st_ino, os.link

    def interrupt(*given: str) -> None:
        if tree(place.parent).keys() - {f"trace/{name}" for name in files} - {".trace.lock"}:
            raise KeyboardInterrupt  # after one file
        link(*given)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", interrupt)
        if killed:
            patched.setattr(filesystem, "remove_tree", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            release(tmp_path, text.format(5), resume=False, only="bert/")
    assert (sorted(path.name for path in place.parent.iterdir()) == ["trace"]) is not killed
    (row,) = release(tmp_path, text.format(0.00001), resume=False, only="bert/")
    assert not row.passed
    assert tree(place) == files
    assert (place / "trace.pt").stat().st_ino == good
    assert sorted(path.name for path in place.parent.iterdir()) == ["trace", "trace.failed"]


@pytest.mark.usefixtures("no_models")
def test_a_release_interrupted_before_its_first_step_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had held would take precedence over a bundle that is exported in between."""
    text = "targets = ['trace', 'script']\n" + MODELS
    rows = release(tmp_path, text, only="bert/")
    place, linked, link = rows[0].step.request.out.parent, [], os.link

    def interrupt(source: str, to: str) -> None:
        linked.append(to)
        if "script" in to:
            raise KeyboardInterrupt
        link(source, to)

    monkeypatch.setattr(os, "link", interrupt)
    with pytest.raises(KeyboardInterrupt):
        release(tmp_path, text, resume=False, only="bert/")
    assert len(linked) > 1
    assert sorted(path.name for path in place.iterdir()) == ["script", "trace"]


@pytest.mark.usefixtures("no_models")
def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    text = f"targets = ['trace']\n[gates]\nmax_mb = {{}}\n{MODELS}"
    (first,) = release(tmp_path, text.format(5), only="bert/")
    place = first.step.request.out
    files = tree(place)
    monkeypatch.setattr(os, "link", refuse)
    (row,) = release(tmp_path, text.format(0.00001), resume=False, only="bert/")
    assert (row.passed, tree(place)) == (False, files)


@pytest.mark.usefixtures("no_models")
def test_only_selected_steps(tmp_path: Path) -> None:
    release(tmp_path)
    assert len(rebuilt(release(tmp_path, resume=False, only="bert/"))) == 6
    assert releases.begun(tmp_path / "out") == 18
    assert rebuilt(release(tmp_path)) == set(), "the state still has the other steps"


@pytest.mark.usefixtures("no_models")
def test_a_baseline_that_is_not_selected(tmp_path: Path) -> None:
    text = f"targets = ['trace', 'onnx']\n[gates]\nmin_speedup = 0.98\nover = 'trace'\n{MODELS}"
    release(tmp_path, text)
    (row,) = release(tmp_path, text, resume=False, only="bert/cpu/onnx")
    assert row.checks[0].measured == pytest.approx(0.99 / 1.01)


@pytest.mark.usefixtures("no_models")
def test_a_baseline_need_not_be_faster_than_itself(tmp_path: Path) -> None:
    text = f"targets = ['trace', 'onnx']\n[gates]\nmin_speedup = 0.99\nmax_mb = 1\nover = 'trace'\n{MODELS}"
    gated = {row.step.variant.name: [check.gate for check in row.checks] for row in release(tmp_path, text)}
    assert gated == {"trace": ["max_mb"], "onnx": ["min_speedup", "max_mb"]}


@pytest.mark.usefixtures("no_models")
def test_a_missing_baseline_is_named(tmp_path: Path) -> None:
    text = f"targets = ['trace', 'onnx']\n[gates]\nmin_speedup = 0.98\nover = 'trace'\n{MODELS}"
    (row,) = release(tmp_path, text, only="bert/cpu/onnx")
    assert not row.passed
    assert "trace has no timing: run its step too" in row.checks[0].text


@pytest.mark.usefixtures("no_models")
def test_a_failed_step_gets_a_row_and_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(request: Request, *_: object) -> tuple[Manifest, Path]:
        if request.variants[0].target == "script":
            raise UsageError("inputs() takes no such size", "look")
        return releases.make(request)

    with monkeypatch.context() as patch:
        patch.setattr(executor, "pipeline", SimpleNamespace(run=failing))
        rows = release(tmp_path)
    scripts = {f"{model}/cpu/script{at}" for model in ("bert", "resnet18") for at in ("", "@bf16")}
    assert {row.step.name: row.reason for row in rows if not row.passed} == dict.fromkeys(
        scripts, "failed at prepare: inputs() takes no such size"
    )
    assert rebuilt(release(tmp_path)) == scripts


def files(folder: Path) -> dict[str, str]:
    """Return the content of every file except the log of begun steps."""
    found = {str(one.relative_to(folder)): one for one in folder.rglob("*") if one.is_file()}
    return {name: one.read_text() for name, one in found.items() if name != releases.LOG}


def test_a_release_killed_at_random_moments_ends_with_the_same_files(tmp_path: Path) -> None:
    moments, kills = random.Random(7), 0
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for out in (whole, killed):
        (tmp_path / "release.toml").write_text(TWELVE)
        steps, _ = plan.make(file.read(tmp_path / "release.toml"), out)
        (tmp_path / out.name).with_suffix(".pickle").write_bytes(pickle.dumps(steps))

    def start(out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, releases.__file__, out.with_suffix(".pickle"), out])

    while kills < 10:
        before = releases.begun(killed)
        with start(killed) as process:
            wait_for(lambda: process.poll() is not None or releases.begun(killed) > before)  # noqa: B023
            time.sleep(moments.uniform(0, 0.05))
            process.kill()
        kills += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
    for out in (whole, killed):
        with start(out) as process:
            assert process.wait(60) == 0
    assert kills > 2
    assert releases.begun(killed) <= 12 + kills
    assert files(killed) == files(whole)


@pytest.mark.usefixtures("no_models")
def test_one_release_at_a_time(tmp_path: Path) -> None:
    release(tmp_path)
    before = files(tmp_path / "out")
    with (
        filesystem.locked(tmp_path / "out" / ".lock", tmp_path / "out"),
        pytest.raises(BundleError, match=f"out is in use by another run .process {os.getpid()}"),
    ):
        release(tmp_path, resume=False)
    assert files(tmp_path / "out") == before


@pytest.mark.usefixtures("no_models")
def test_a_full_disk_keeps_the_last_bundles_and_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(tmp_path)
    before = files(tmp_path / "out")
    written = 0

    def full(path: Path, text: str, write: Callable[[Path, str], None] = filesystem.write_atomic) -> None:
        nonlocal written
        written += 1
        if written > 7:
            raise OSError(28, "No space left on device", str(path))
        write(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "write_atomic", full)
        with pytest.raises(BundleError, match="the disk is full") as raised:
            release(tmp_path, resume=False)
    assert raised.value.remedy
    after = files(tmp_path / "out")
    assert {n: t for n, t in after.items() if n != "release.json"} == {
        n: t for n, t in before.items() if n != "release.json"
    }
    assert len(rebuilt(release(tmp_path))) == 12 - 3


def test_an_unwritable_output_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(BundleError, match="a file is in its place"):
        release(tmp_path)
    (tmp_path / "out").unlink()

    def refuse(*args: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "out"))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BundleError, match=r"cannot write to .*out: permission denied"):
        release(tmp_path)


def test_a_broken_state_file_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "release.json").write_text('{"steps": []}')
    with pytest.raises(ArtifactError, match=r"release\.json") as raised:
        release(tmp_path)
    assert "remove it" in raised.value.remedy


def test_concurrent_steps(tmp_path: Path) -> None:
    """Each step runs in its own process; these fail at once, because --fullgraph does not apply to them."""
    steps = [replace(s, request=replace(s.request, fullgraph=True)) for s in planned(tmp_path, TWELVE)[:3]]
    outcomes = list(executor.Local(2).run(steps, Listener()))
    assert sorted(step.name for step, _ in outcomes) == sorted(step.name for step in steps)
    assert {outcome.reason for _, outcome in outcomes} == {"--fullgraph applies only to variants compiled just in time"}


def test_a_killed_worker_fails_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_perform_in_worker", releases.die)
    steps = planned(tmp_path, TWELVE)[:3]
    rows = run.run(steps, steps, tmp_path / "out", True, executor.Local(2), Listener())
    assert [row.step.name for row in rows] == [step.name for step in steps]
    assert {row.reason for row in rows} == {"failed at prepare: a worker process was killed"}
    assert all("fewer --jobs" in row.remedy for row in rows)
    monkeypatch.undo()
    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=releases.make))
    assert len(rebuilt(releases.resume(steps, tmp_path / "out"))) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_concurrent_steps_end_with_the_release(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "release.toml"
    path.write_text(
        f'bench = false\n[[models]]\nmodel = "{RECIPES}/broken.py:trace_hangs"\ntargets = ["trace", "export"]\n'
    )
    process = start_cli("release", path, "--jobs", "2", "--out", tmp_path / "out")
    with process:
        logs = tmp_path / "out" / "trace_hangs" / "cpu"
        wait_for(lambda: (logs / ".trace.staging" / "logs" / "trace.log").exists())
        family = children(process.pid)
        process.send_signal(number)
        process.communicate(timeout=60)
    wait_for(lambda: all(map(gone, family)))
    assert process.returncode == (130 if number == signal.SIGTERM else -9)


def rows_of(tmp_path: Path) -> list[run.Row]:
    """Return three rows: a step that passed, one with a failed gate, and one that failed."""
    steps = planned(tmp_path, TWELVE.replace("[[models]]", "[gates]\nmax_mb = 1\n[[models]]", 1))[:3]
    passed, large, failed = (replace(step, request=replace(step.request, out=Path("/out"))) for step in steps)
    small = gates.measure(variant(artifact=ArtifactRecord("trace.pt", 10, "")))
    found = gates.measure(variant())
    return [
        run.Row(passed, Path("/out/a"), measured=small, checks=gates.check(passed.gates, small)),
        run.Row(large, Path("/out/b"), measured=found, checks=gates.check(large.gates, found)),
        run.Row(failed, None, reason="failed at export: 100% wrong,\n<really>: so", remedy="mend it"),
    ]


def test_the_table_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = formats.render(rows_of(tmp_path), "table", Path("release.toml"), Path("/out"))
    assert max(map(len, text.split("bert/cpu/trace@bf16: ")[0].splitlines())) <= 80
    assert "bert/cpu/trace@bf16: max_mb: 1.23 MB, at most 1 MB" in text
    assert "1 of 3 steps passed their gates." in text
    monkeypatch.setenv("COLUMNS", "50")
    narrow = formats.render(rows_of(tmp_path), "table", Path("release.toml"), Path("/out"))
    assert max(map(len, narrow.split("bert/cpu/trace@bf16: ")[0].splitlines())) <= 50


def test_github_annotations(tmp_path: Path) -> None:
    text = formats.render(rows_of(tmp_path), "github", Path("ci/release.toml"), Path("/out"))
    annotations = [line for line in text.splitlines() if line.startswith("::")]
    assert annotations == [
        "::error file=ci/release.toml,line=6,title=bert/cpu/trace@bf16%3A max_mb::1.23 MB, at most 1 MB",
        "::error file=ci/release.toml,line=7,title=bert/cpu/script%3A failed"
        "::failed at export: 100%25 wrong,%0A<really>: so; mend it",
    ]


@pytest.mark.parametrize(
    ("text", "annotations"),
    [
        (
            "out = 3\nseed = 'x'\n" + MODELS,
            ["line=1::out: 3 is not of type 'string'", "line=2::seed: 'x' is not of type 'integer'"],
        ),
        ("a = 1\nb = ", ["line=2::Invalid value; it is not valid TOML (https://toml.io)"]),
        (MODELS + "checkpoint = 'gone.pt'", ["line=3::models[0].checkpoint: there is no file gone.pt; check the path"]),
        (None, ["line=1::{file} cannot be read: No such file or directory; pass the path of a release file"]),
    ],
    ids=["schema", "TOML", "plan", "missing"],
)
def test_github_annotations_of_errors_in_the_file(
    cli: Cli, tmp_path: Path, text: str | None, annotations: list[str]
) -> None:
    path = tmp_path / "release.toml"
    if text is not None:
        path.write_text(text)
    done = cli("release", path, "--format", "github")
    assert done.code == 2
    told = done.out.splitlines()
    assert len(told) == len(annotations)
    for line, wanted in zip(told, annotations, strict=True):
        assert line.startswith(f"::error file={path},{wanted.format(file=path)}")
    assert str(path) in done.err
    assert "::" not in cli("release", path).out


def test_the_plan_in_every_form(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "release.toml"
    path.write_text("targets = ['trace']\n[gates]\nmax_mb = 5.0\n" + MODELS)
    found = json.loads(cli("release", path, "--dry-run", "--format", "json").out)
    (step,) = found.pop("steps")
    assert found == {"schema": SCHEMA, "file": str(path), "out": str(tmp_path / "artifacts/release")}
    assert (step.pop("gates")["max_mb"], step) == (
        5.0,
        {
            "name": "bert/cpu/trace",
            "run": True,
            "bundle": f"{found['out']}/bert/cpu/trace",
            "line": 4,
        },
    )
    done = cli("release", path, "--dry-run", "--format", "md")
    assert done.out.splitlines()[0] == "### release.toml: plan"
    assert "| bert/cpu/trace | make | max_mb 5.0 |" in done.out
    assert done.out.endswith("1 of 1 steps to run.\n")
    path.write_text("targets = ['trace']\n[gates]\nmin_metric = 0.0\nmax_metric_loss = 0\ncpp = true\n" + MODELS)
    assert "min_metric 0.0, max_metric_loss 0, cpp |" in cli("release", path, "--dry-run", "--format", "md").out
    for form in ("table", "github"):
        assert "1 of 1 steps to run, into " in cli("release", path, "--dry-run", "--format", form).out


def test_a_plan_checks_that_its_bundles_can_be_written(cli: Cli, tmp_path: Path) -> None:
    (path := tmp_path / "release.toml").write_text("targets = ['trace']\nout = 'made/here'\n" + MODELS)
    done = cli("release", path, "--dry-run")
    assert (done.code, sorted(tmp_path.iterdir())) == (0, [path])
    (tmp_path / "made").touch()
    done = cli("release", path, "--dry-run")
    assert (done.code, f"cannot write to {tmp_path}/made/here: a part of the path is a file" in done.err) == (2, True)
    (tmp_path / "made").unlink()
    (mine := tmp_path / "made/here/bert/cpu/trace/mine").mkdir(parents=True)
    done = cli("release", path, "--dry-run")
    assert (done.code, f"{mine.parent} contains files but is not a bundle" in done.err) == (2, True)


def test_a_plan_names_a_folder_that_nobody_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(BundleError, match=r"cannot write to .*/new/out: permission denied"):
        run.require_writable([], tmp_path / "new/out")
    (tmp_path / "out").touch()
    with pytest.raises(BundleError, match=r"cannot write to .*/out: a file is in its place"):
        run.require_writable([], tmp_path / "out")


def test_a_plan_has_no_junit_report(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "release.toml").write_text(MODELS)
    done = cli("release", tmp_path / "release.toml", "--dry-run", "--junit", tmp_path / "junit.xml")
    assert (done.code, "--dry-run runs nothing that --junit could report" in done.err) == (2, True)
    assert not (tmp_path / "junit.xml").exists()


def test_json_and_markdown_output(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    found = json.loads(formats.render(rows, "json", Path("release.toml"), Path("/out")))
    assert (found["status"], [step["status"] for step in found["steps"]]) == ("failed", ["passed", "failed", "failed"])
    assert found["steps"][1]["gates"][0]["measured"] == pytest.approx(1.234567)
    text = formats.render(rows, "md", Path("release.toml"), Path("/out"))
    assert text.startswith("### release.toml: FAILED\n")
    assert "- **bert/cpu/script**: failed at export: 100% wrong, &lt;really>: so; mend it" in text


def test_unstable_latencies_are_marked(tmp_path: Path) -> None:
    row, *_ = rows_of(tmp_path)
    noisy = replace(row, measured=replace(row.measured, p99_ms=3.25, speedup=1.5, stable=False))
    settled = replace(row, measured=replace(noisy.measured, stable=True))
    for form in ("table", "md"):
        text, quiet = (formats.render([one], form, tmp_path / "release.toml", tmp_path) for one in (noisy, settled))
        assert ("3.25 ms ~" in text, "1.50x ~" in text, "~ unstable: " in text) == (True, True, True)
        assert ("3.25 ms" in quiet, "~" in quiet) == (True, False)


def test_junit_output(tmp_path: Path) -> None:
    junit.write([replace(row, seconds=40.5) for row in rows_of(tmp_path)], tmp_path / "junit.xml")
    report = junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert (report.tests, report.failures) == (5, 2)
    assert [(report.time, [suite.time for suite in report])] == [(121.5, [121.5])]
    cases = [case for suite in report for case in suite if case.result]
    assert [(case.classname, case.name) for case in cases] == [
        ("bert/cpu/trace@bf16", "max_mb"),
        ("bert/cpu/script", "export and parity"),
    ]
    junit.write([], tmp_path / "nowhere" / "junit.xml")
    with pytest.raises(UsageError, match="cannot write"):
        junit.write([], tmp_path / "junit.xml" / "junit.xml")


def test_concurrent_junit_writers_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases may write the same file at the same time, and symbolic links are not followed."""
    (tmp_path / "junit.xml.new").symlink_to(tmp_path / "elsewhere")
    junit.write([], tmp_path / "junit.xml")
    assert not (tmp_path / "elsewhere").exists()
    named = {filesystem.own_new(tmp_path / "junit.xml")}
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert filesystem.own_new(tmp_path / "junit.xml") not in named


def test_junit_has_one_suite_for_a_model_listed_twice(tmp_path: Path) -> None:
    one, *_ = rows_of(tmp_path)
    names = ("bert/cpu/trace", "vit/cpu/trace", "bert/cpu/onnx")
    junit.write([replace(one, step=replace(one.step, name=name)) for name in names], tmp_path / "junit.xml")
    report = junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert sorted(suite.name for suite in report) == ["bert", "vit"]


def test_a_file_that_was_replaced_is_hashed_again(tmp_path: Path) -> None:
    """Copies such as those of rsync keep the time of modification, and the size may be the same."""
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    before, hashed = file.stat(), keys._hash(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert keys._hash(file) == hashlib.sha256(b"two").hexdigest() != hashed


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    steps = planned(tmp_path, TWELVE)
    monkeypatch.setattr(keys, "_digest", refuse)
    with pytest.raises(UsageError, match=r"cannot be read: Permission denied") as raised:
        run.kept(steps, tmp_path / "out")
    assert raised.value.remedy == "change its permissions or owner"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "release.json").mkdir()
    with pytest.raises(ArtifactError, match=r"release\.json cannot be read: Is a directory"):
        run.kept(steps, tmp_path / "out")


def test_junit_replaces_characters_that_xml_forbids(tmp_path: Path) -> None:
    rows = [replace(row, reason="\x1b[31mred\x00 \ud800\U0001f600" if row.reason else "") for row in rows_of(tmp_path)]
    path = tmp_path / "junit.xml"
    junit.write(rows, path)
    report = junitparser.JUnitXml.fromfile(str(path))
    found = [case.result[0].message for suite in report for case in suite if case.result]
    assert found[-1] == "\ufffd[31mred\ufffd \ufffd\U0001f600"


@pytest.mark.usefixtures("no_models")
def test_rows_have_the_seconds_that_their_export_took(tmp_path: Path) -> None:
    steps = planned(tmp_path, MODELS + "targets = ['trace', 'script']")
    rows = run.run(steps, steps, tmp_path / "out", False, executor.Local(), Listener())
    assert [row.seconds > 0 for row in rows] == [True, True]
    rows = run.run(steps, steps, tmp_path / "out", True, executor.Local(), Listener())
    assert [(row.kept, row.seconds) for row in rows] == [(True, 0.0), (True, 0.0)]


@pytest.mark.usefixtures("no_models")
def test_an_unwritable_summary_is_an_error(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "nowhere" / "summary.md"))
    (tmp_path / "release.toml").write_text(MODELS + "targets = ['trace']")
    done = cli("release", tmp_path / "release.toml", "--out", tmp_path / "out", "--format", "github", "-q")
    assert (done.code, "1 of 1 steps passed" in done.out) == (2, True)
    assert f"cannot write {tmp_path}/nowhere/summary.md: No such file" in done.err


def test_a_relative_exporter_run_is_resolved_from_the_working_directory(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def make(request: Request, *_: object) -> tuple[Manifest, Path]:
        found.append(environment.find_runner())
        return releases.make(request)

    monkeypatch.setattr(executor, "pipeline", SimpleNamespace(run=make))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXPORTER_RUN", "bin/exporter-run")
    for folder in ("bin", "ci"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "exporter-run").touch(0o755)
    (tmp_path / "ci" / "release.toml").write_text(MODELS + "targets = ['trace']")
    assert cli("release", "ci/release.toml", "--out", "out", "-q").code == 0
    assert found == [tmp_path / "bin" / "exporter-run"]


def test_a_whole_release_on_the_command_line(
    cli: Cli, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates, kept and rebuilt steps, failures, exit codes and every output."""
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    path = recipe / "release.toml"
    path.write_text(
        'out = "../out"\nbench = false\ntargets = ["trace", "export"]\n[gates]\nparity = "drift"\n'
        '[[models]]\nmodel = "tiny.py:mlp"\n'
    )
    done = cli("release", path, "--junit", tmp_path / "junit.xml")
    assert (done.code, "2 of 2 steps passed" in done.out) == (0, True)
    assert "mlp/cpu/trace" in done.err
    assert {p.name for p in (tmp_path / "out" / "mlp" / "cpu").iterdir()} == {"trace", "export"}
    assert cli("check", tmp_path / "out" / "mlp" / "cpu" / "trace").code == 0
    text = path.read_text() + 'gates.cpp = true\n[[models]]\nmodel = "broken.py:forward_raises"\ntargets = ["trace"]\n'
    path.write_text(text)
    shutil.copy(RECIPES / "broken.py", recipe)
    done = cli("release", path, "--resume", "--format", "github", "-q")
    assert done.code == 1
    assert "2 kept from an earlier run" in done.out
    assert f"::error file={path},line=8,title=mlp/cpu/trace%3A cpp::does not run in C++" in done.out
    assert f"::error file={path},line=9,title=forward_raises/cpu/trace%3A failed::failed at prepare" in done.out
    assert "FAILED" in (tmp_path / "summary.md").read_text()
    done = cli("release", path, "--resume", "--only", "none/*")
    assert (done.code, "no step matches --only none/*" in done.err) == (2, True)


def test_the_release_file_in_the_documentation_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "release-pipelines.md").read_text()
    assert len(planned(tmp_path, text.partition("```toml\n")[2].partition("```")[0])) == 9


def workflows() -> dict[str, str]:
    """Return the CI files that the documentation shows."""
    text = (ROOT / "docs" / "release-pipelines.md").read_text()
    return dict(re.findall(r"`([\w./-]+\.yml)`[^`]*```yaml\n(.*?)```", text, re.DOTALL))


def test_the_schema_matches_the_settings() -> None:
    """If this fails, run `make schemas`."""
    written = (ROOT / "exporter" / "release" / "schema.json").read_text(encoding="utf-8")
    assert json.loads(written) == schema.make()


@pytest.mark.parametrize(
    ("name", "schema"),
    [(".github/workflows/release.yml", "vendor.github-workflows"), (".gitlab-ci.yml", "vendor.gitlab-ci")],
)
def test_the_ci_files_in_the_documentation_are_valid(name: str, schema: str, tmp_path: Path) -> None:
    found = workflows()[name]
    for text, valid in ((found, True), (found.replace("script:", "scripts:").replace("steps:", "step:"), False)):
        (tmp_path / "ci.yml").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, tmp_path / "ci.yml"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == valid, done.stdout
    assert "exporter release release.toml" in found
