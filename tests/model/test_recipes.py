"""Finding a recipe by name, and the errors if there is none or it is broken."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.commands import RECIPES, recipe_path

from exporter.core import dimensions
from exporter.core.errors import RecipeError, UsageError
from exporter.core.size_range import Range
from exporter.model import examples, recipes
from exporter.model.recipes import FunctionRecipe, Source
from exporter.model.sources import _saved_files


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    """Restore sys.path and sys.modules, because importing a recipe leaves its folder on the path."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(RECIPES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def load(name: str, inputs_file: str = "") -> Any:
    return recipes.load(recipes.find(recipe_path(name), inputs_file))


def test_our_recipes_are_found_without_importing_them() -> None:
    assert {"bert", "minilm", "resnet18", "vit"} <= set(recipes.available())
    source = recipes.find("bert")
    assert (source.kind, source.place, source.label) == ("name", "exporter_models.bert", "bert")


@pytest.mark.parametrize("name", ["minilm", "resnet18", "vit"])
def test_our_recipes_load_and_run(name: str) -> None:
    """BERT is exported by tests/whole/test_bert.py."""
    recipe = recipes.load(recipes.find(name))
    with torch.no_grad():
        recipe.load("random").eval()(**recipe.inputs(batch=2))


def test_recipes_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("mine", "json.decoder:JSONDecoder", recipes.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    source = recipes.find("mine")
    assert (source.place, source.attribute, source.label) == ("json.decoder", "JSONDecoder", "mine")


@pytest.mark.parametrize("mistyped", ["bort", "BERT", "resnet", "mini-lm"])
def test_did_you_mean(mistyped: str) -> None:
    with pytest.raises(UsageError, match="there is no model") as raised:
        recipes.find(mistyped)
    remedy = raised.value.remedy
    assert "exporter models" in remedy
    if mistyped != "BERT":
        assert "did you mean" in remedy


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "there is no model ''"),
        ("nowhere.py:x", "there is no file nowhere.py"),
        ("tests/recipes/tiny.py", "names a file but not an object in it"),
        (f"{RECIPES}/tiny.py:", "names a file but not an object in it"),
        (f"{RECIPES}:x", "there is no model"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipes.find(name)


@pytest.mark.parametrize("name", ["model", "model.bin", "silero.jit", "v1.2", "m.pth", "onnx.onnx"])
def test_any_file_may_contain_a_program(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    source = recipes.find(str(tmp_path / name))
    assert (source.kind, source.place, source.attribute) == ("source", "saved", str(tmp_path / name))


def test_a_recipe_name_takes_precedence_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bert").touch()
    monkeypatch.chdir(tmp_path)
    assert recipes.find("bert").kind == "name"
    assert recipes.find("./bert").place == "saved"
    with pytest.raises(UsageError, match=r"there is no file other\.jit"):
        recipes.find("other.jit")


def test_dim_applies_only_to_saved_inputs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dim does not apply to mlp: its inputs"):
        recipes.with_dims(recipes.find(recipe_path("tiny:mlp")), ["batch=x:0"])
    torch.save({"x": torch.ones(5, 4)}, tmp_path / "inputs.pt")
    source = recipes.find(recipe_path("tiny:lonely"), str(tmp_path / "inputs.pt"))
    assert [str(dim) for dim in recipes.with_dims(source, ["batch=x:0:2..9"]).dims] == ["batch=x:0:2..9"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["batch"], "is not NAME=INPUT:AXIS"),
        (["batch=x"], "is not NAME=INPUT:AXIS"),
        (["batch=x:-1"], "is not NAME=INPUT:AXIS"),
        (["b=x:0:9..2"], "has an empty range"),
        (["b=x:0:0..2"], "has an empty range"),
        (["b=x:0", "c=x:0"], "dimension 0 of x has two names"),
        (["b=x:0:1..2", "b=y:0:1..3"], "b has two ranges, 1 to 2 and 1 to 3"),
    ],
)
def test_invalid_dimensions(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dimensions.parse_all(texts)


def test_named_dimensions_keep_samples_and_metric() -> None:
    own: dict[str, Any] = {"samples": lambda: [1], "metric": lambda outputs, sample: 1.0}
    fixed = recipes.FunctionRecipe(lambda _: torch.nn.Identity(), lambda: {"x": torch.ones(2, 3)}, {}, **own)
    recipe = examples.with_dims(fixed, Takes(), dimensions.parse_all(["batch=x:0"]))
    assert (recipe.samples, recipe.metric) == (own["samples"], own["metric"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "class net:\n    load = inputs = staticmethod(lambda: None)",
            r"load\(\) cannot be called as load\(weights\): too many",
        ),
        ("def net(size): ...\ndef net_inputs(): ...", r"net\(\) cannot be called as net\(\): missing a required"),
        (
            "def net(): ...\ndef net_inputs(): ...\ndef net_metric(outputs): ...",
            r"metric\(\) cannot be called as metric\(outputs, sample\): too many",
        ),
        (
            "def net(): ...\ndef net_inputs(): ...\ndef net_samples(n): ...",
            r"samples\(\) cannot be called as samples\(\): missing a required",
        ),
    ],
)
def test_functions_with_wrong_arguments_are_recipe_errors(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "odd_recipe.py").write_text(source)
    with pytest.raises(RecipeError, match=message) as raised:
        recipes.load(recipes.find(f"{tmp_path / 'odd_recipe.py'}:net"))
    assert raised.value.remedy.startswith("write def ")


def test_a_method_without_self_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd_recipe.py").write_text("class net:\n    def load(weights): ...\n    def inputs(batch=2): ...")
    with pytest.raises(RecipeError, match=r"load\(\) cannot be called as load\(weights\)") as raised:
        recipes.load(recipes.find(f"{tmp_path / 'odd_recipe.py'}:net"))
    assert raised.value.remedy == "write def load(self, weights), or @staticmethod before def load(weights)"


def test_named_dimensions_move_together() -> None:
    example = {"x": torch.arange(6).reshape(2, 3), "state": torch.randn(4, 2, 3), "flag": True}
    fixed = recipes.FunctionRecipe(lambda _: torch.nn.Identity(), lambda: example, {})
    dims = dimensions.parse_all(["batch=x:0", "batch=state:1", "width=state:2:3..7"])
    recipe = examples.with_dims(fixed, Takes(), dims)
    moved = examples.with_dims(fixed, Takes(), dimensions.parse_all(["width=x:1:5..9"]))
    assert recipes.example_sizes(moved.inputs) == {"width": 5}
    assert moved.inputs()["x"].shape == (2, 5)
    assert recipes.example_sizes(recipe.inputs) == {"batch": 2, "width": 3}
    assert recipes.ranges(recipe) == {"batch": Range(1, 64), "width": Range(3, 7)}
    made = recipe.inputs(batch=5, width=4)
    assert {name: getattr(value, "shape", value) for name, value in made.items()} == {
        "x": (5, 3),
        "state": (4, 5, 4),
        "flag": True,
    }
    for wrong, message in (
        ("batch=state:0", "batch is 2 in dimension 0 of x, and 4 in 0 of state"),
        ("b=x:2", "no input has that dimension"),
        ("b=y:0", "no input has that dimension"),
    ):
        with pytest.raises(RecipeError, match=message):
            examples.with_dims(fixed, Takes(), [*dims[:1], dimensions.parse(wrong)])


class Takes(torch.nn.Module):
    def forward(self, x: Any, state: Any, flag: Any) -> None: ...


def test_a_class_is_a_recipe() -> None:
    recipe = load("tiny:mlp")
    assert recipes.ranges(recipe) == {"batch": Range(1, 8)}
    assert recipes.example_sizes(recipe.inputs) == {"batch": 2}


def test_a_number_means_a_range_from_one() -> None:
    assert recipes.ranges(load("tiny:pair"))["sequence"] == Range(1, 6)


def test_a_callable_with_an_inputs_function() -> None:
    recipe = load("tiny:made")
    assert isinstance(recipe.load("auto"), torch.nn.Module)
    assert recipes.ranges(recipe) == {"batch": Range(1, 64)}


def test_a_callable_with_saved_inputs(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(5, 4)}, tmp_path / "inputs.pt")
    recipe = load("tiny:lonely", str(tmp_path / "inputs.pt"))
    assert recipe.inputs()["x"].shape == (5, 4)
    assert recipes.ranges(recipe) == {}


@pytest.mark.parametrize("name", ["bert", "hf:bert"])
def test_saved_inputs_replace_those_of_any_recipe(tmp_path: Path, name: str) -> None:
    torch.save({"x": torch.ones(5, 4)}, tmp_path / "inputs.pt")
    source = recipes.find(name, str(tmp_path / "inputs.pt"))
    recipe = recipes.load(source)
    assert recipe.inputs()["x"].shape == (5, 4)
    assert recipes.ranges(recipe) == {}


def test_an_example_of_more_than_64(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(
        "import torch\ndef net(): return torch.nn.Linear(2, 2)\ndef net_inputs(batch=128): return torch.ones(batch, 2)"
    )
    recipe = recipes.load(recipes.find(f"{tmp_path / 'wide.py'}:net"))
    assert recipes.ranges(recipe) == {"batch": Range(1, 128)}


def test_saved_inputs_of_a_machine_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setattr("torch.serialization.location_tag", lambda storage: "cuda:0")
        torch.save({"x": torch.ones(3, 4)}, tmp_path / "inputs.pt")
    assert load("tiny:lonely", str(tmp_path / "inputs.pt")).inputs()["x"].device == torch.device("cpu")


def test_saved_inputs_run_no_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save(Trap(), tmp_path / "inputs.pt")
    with pytest.raises(RecipeError, match="cannot be read"):
        load("tiny:lonely", str(tmp_path / "inputs.pt"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "message", "remedy"),
    [
        ("does_not_import:x", "does not import: ModuleNotFoundError: .*a_package_that_nobody_has", "install"),
        ("tiny:mpl", r"tiny\.py has no mpl", "did you mean mlp"),
        ("tiny:zzzzzz", "has no zzzzzz", "it has "),
        ("tiny:lonely", "its inputs are unknown", "lonely_inputs"),
        ("broken:no_inputs", r"no_inputs has no inputs\(\)", "a recipe has load"),
    ],
)
def test_broken_recipes(name: str, message: str, remedy: str) -> None:
    with pytest.raises(RecipeError, match=message) as raised:
        load(name)
    assert remedy in raised.value.remedy


def test_a_file_that_needs_a_library_of_operators(tmp_path: Path) -> None:
    """torch registers a fake kernel only for an operator that exists."""
    (tmp_path / "fake.py").write_text("import torch\ntorch.library.register_fake('nowhere::near', abs)\n")
    with pytest.raises(RecipeError, match="does not import: RuntimeError: operator nowhere::near") as raised:
        recipes.load(recipes.find(f"{tmp_path / 'fake.py'}:model"))
    assert "--ops-lib" in raised.value.remedy


def test_an_object_that_is_neither_a_recipe_nor_callable(tmp_path: Path) -> None:
    (tmp_path / "constant.py").write_text("answer = 42")
    with pytest.raises(RecipeError, match=r"answer has no load\(\) and inputs\(\)"):
        recipes.load(recipes.find(f"{tmp_path / 'constant.py'}:answer"))


def test_a_file_that_defines_nothing(tmp_path: Path) -> None:
    (tmp_path / "blank.py").write_text("import torch\n")
    with pytest.raises(RecipeError, match="has no net") as raised:
        recipes.load(recipes.find(f"{tmp_path / 'blank.py'}:net"))
    assert raised.value.remedy.startswith("it defines no recipe; a recipe has load(weights)")


def test_a_class_that_cannot_be_instantiated(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text(
        "class needy:\n    def __init__(self, x): ...\n    def load(self, w): ...\n    def inputs(self): ...\n"
    )
    with pytest.raises(RecipeError, match="needy"):
        recipes.load(recipes.find(f"{tmp_path / 'needy.py'}:needy"))


def test_a_file_that_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nsys.exit('usage: script.py FILE')")
    with pytest.raises(RecipeError, match="does not import: SystemExit"):
        recipes.load(recipes.find(f"{tmp_path / 'script.py'}:model"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sizes_name_a_stranger", "sizes names sequence, but inputs.. takes batch"),
        ("sizes_upside_down", "sizes gives batch the range 8 to 2"),
        ("inputs_without_default", "parameter batch without an integer default"),
    ],
)
def test_broken_sizes(name: str, message: str) -> None:
    recipe = load(f"broken:{name}")
    with pytest.raises(RecipeError, match=message):
        recipes.ranges(recipe)


def test_a_third_number_is_the_step() -> None:
    recipe = FunctionRecipe(lambda weights: None, lambda height=64: None, {"height": (30, 500, 16)})
    assert recipes.ranges(recipe) == {"height": Range(32, 496, multiple_of=16)}


@pytest.mark.parametrize(("sizes", "kind"), [(["batch"], "list"), ("batch", "str"), (8, "int")])
def test_sizes_that_are_no_dict(sizes: Any, kind: str) -> None:
    recipe = FunctionRecipe(lambda weights: None, lambda batch=1: None, sizes)
    with pytest.raises(RecipeError, match=f"sizes is a {kind}, not a dict") as raised:
        recipes.ranges(recipe)
    assert raised.value.remedy == 'write {"batch": (min, max)}'


NO_RANGES = [(1,), "1-8", None, (1.5, 8), ("a", "b"), (1, 8, 9), (1, 8, 0), (1, 8, 2, 2), range(10, 50, 4), range(0)]


@pytest.mark.parametrize("bounds", NO_RANGES)
def test_invalid_ranges(bounds: Any) -> None:
    recipe = FunctionRecipe(lambda weights: None, lambda batch=1: None, {"batch": bounds})
    with pytest.raises(RecipeError, match="batch"):
        recipes.ranges(recipe)


@pytest.mark.parametrize(
    ("bounds", "meant"),
    [
        (range(1, 9), Range(1, 8)),
        (range(32, 257, 32), Range(32, 256, multiple_of=32)),
        (range(8, 10), Range(8, 9)),
        (range(5, 6, 3), Range(5, 5)),
    ],
)
def test_a_range_of_python(bounds: range, meant: Range) -> None:
    assert recipes.ranges(FunctionRecipe(lambda weights: None, lambda batch=1: None, {"batch": bounds})) == {
        "batch": meant
    }


def test_variadic_parameters_are_not_sizes() -> None:
    assert recipes.example_sizes(lambda batch=3, *rest, **others: None) == {"batch": 3}


def test_inputs_must_be_a_function() -> None:
    with pytest.raises(RecipeError, match="inputs is not a function"):
        recipes.example_sizes(42)  # type: ignore[arg-type]


@pytest.mark.parametrize("inputs", [{"x": torch.ones(2, 4)}, lambda batch=2: {"x": torch.ones(batch, 4)}])
def test_a_module_in_memory(tmp_path: Path, inputs: Any) -> None:
    import cloudpickle

    own = {"inputs": inputs, "sizes": None, "samples": None, "metric": None}
    torch.save((torch.nn.Linear(4, 2), own), tmp_path / "m.pt", pickle_module=cloudpickle)
    recipe = recipes.load(Source("memory", str(tmp_path / "m.pt"), "linear"))
    assert isinstance(recipe.load("auto"), torch.nn.Linear)
    assert recipe.inputs()["x"].shape == (2, 4)


def test_a_module_in_memory_whose_class_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "passing.py").write_text("import torch\nclass Model(torch.nn.Linear): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import passing  # type: ignore[import-not-found]

    torch.save((passing.Model(2, 2), {}, None), tmp_path / "m.pt")
    del sys.modules["passing"]
    (tmp_path / "passing.py").unlink()
    with pytest.raises(RecipeError, match="cannot be sent to another process"):
        recipes.load(Source("memory", str(tmp_path / "m.pt"), "model"))


@pytest.mark.parametrize("name", ["inputs.safetensors", "inputs.st", "inputs"])
def test_inputs_are_read_by_content(tmp_path: Path, name: str) -> None:
    save_file({"x": torch.ones(5, 4)}, tmp_path / name)
    assert load("tiny:lonely", str(tmp_path / name)).inputs()["x"].shape == (5, 4)
    assert _saved_files.load_tensors(tmp_path / name)["x"].shape == (5, 4)


def test_a_recipe_in_a_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"a\xffb")
    folder.mkdir()
    (folder / "net.py").write_text("")
    with pytest.raises(UsageError, match=r"the path of the recipe is not valid UTF-8: b'.*/a\\xffb/net\.py'") as raised:
        recipes.find(f"{folder}/net.py:net")
    assert raised.value.remedy.startswith("rename the file or folder")
