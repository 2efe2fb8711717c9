"""Recipes of timm's models, with a fake timm if it is not installed."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from exporter.core.errors import RecipeError
from exporter.core.size_range import Range
from exporter.model import recipes
from exporter.model.sources import _hf_hub

installed = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disable the network, and hide weights that this machine has cached."""
    torch.manual_seed(0)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(_hf_hub, "online", lambda: False)


def recipe(name: str) -> Any:
    return recipes.load(recipes.find(f"timm:{name}"))


class Tiny(nn.Module):
    """A convolution, batch norm and a head of zeros, as in many models of timm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]


Fake = Callable[..., None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A function that installs a fake timm with one model, `tiny`, the given configuration, and `fetch` for weights."""

    def act(fetch: Callable[[], None] = lambda: None, **config: Any) -> None:
        usual = {"input_size": (1, 32, 32), "min_input_size": None, "fixed_input_size": False, "file": None, "url": ""}
        usual |= {"hf_hub_id": "timm/tiny", "hf_hub_filename": None, "license": "mit"}

        def create_model(name: str, pretrained: bool) -> nn.Module:
            if pretrained:
                fetch()
            return Tiny()

        module = types.ModuleType("timm")
        vars(module).update(
            is_model=lambda name: name.partition(".")[0] == "tiny",
            list_models=lambda: ["tiny"],
            list_pretrained=lambda pattern: ["tiny.a1_in1k", "tiny.b2"],
            get_pretrained_cfg=lambda name: types.SimpleNamespace(**usual | config),
            create_model=create_model,
        )
        monkeypatch.setitem(sys.modules, "timm", module)

    return act


def unreachable() -> None:
    raise FileNotFoundError("no answer, and not in the cache")


def test_a_source_of_recipes() -> None:
    source = recipes.find("timm:resnet50.a1_in1k")
    assert (source.kind, source.place, source.label) == ("source", "timm", "resnet50.a1_in1k")


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(RecipeError, match="timm does not import") as raised:
        recipe("resnet18")
    assert raised.value.remedy == "pip install 'exporter[timm]'"


def test_inputs_follow_the_configuration(fake: Fake) -> None:
    fake(min_input_size=(1, 16, 16))
    made = recipe("tiny")
    assert made.inputs(batch=2).shape == (2, 1, 32, 32)
    assert made.inputs(image=24).shape == (1, 1, 24, 24)
    assert recipes.ranges(made) == {"batch": Range(1, 32)}
    with pytest.raises(RecipeError, match="tiny takes no image of 8 pixels"):
        made.inputs(image=8)


@pytest.mark.parametrize("config", [{"fixed_input_size": True}, {"input_size": (1, 48, 32)}])
def test_a_fixed_size(config: dict[str, Any], fake: Fake) -> None:
    fake(**config)
    made = recipe("tiny")
    assert recipes.example_sizes(made.inputs) == {"batch": 1}
    assert made.inputs().shape == (1, *config.get("input_size", (1, 32, 32)))


def test_random_weights_follow_the_input(fake: Fake) -> None:
    fake()
    made = recipe("tiny")
    model = made.load("random")
    assert model.exporter_weights == "random"
    with torch.no_grad():
        a, b = (model(made.inputs()) for _ in range(2))
    assert not torch.equal(a, b)
    assert model.norm.running_mean.std() > 0


def test_pretrained_weights(fake: Fake) -> None:
    from huggingface_hub import constants

    seen = []
    fake(lambda: seen.append(constants.HF_HUB_OFFLINE))
    before = constants.HF_HUB_OFFLINE
    model = recipe("tiny").load("auto")
    assert model.exporter_weights == "pretrained"
    assert (model.exporter_origin, model.exporter_licence) == ("pkg:huggingface/timm/tiny", "mit")
    assert seen == [True]  # the hub's client is set to offline
    assert before == constants.HF_HUB_OFFLINE


def test_offline(fake: Fake) -> None:
    fake(unreachable)
    with pytest.warns(UserWarning, match="random weights: the pretrained weights of tiny cannot be fetched: no answer"):
        assert recipe("tiny").load("auto").exporter_weights == "random"
    with pytest.raises(RecipeError, match="the pretrained weights of tiny cannot be fetched: no answer"):
        recipe("tiny").load("pretrained")


def test_no_pretrained_weights_at_all(fake: Fake) -> None:
    fake(unreachable, hf_hub_id=None)
    with pytest.warns(UserWarning, match="random weights: tiny has no pretrained weights"):
        assert recipe("tiny").load("auto").exporter_weights == "random"
    with pytest.raises(RecipeError, match="tiny has no pretrained weights") as raised:
        recipe("tiny").load("pretrained")
    assert "--checkpoint" in raised.value.remedy


@pytest.mark.parametrize(
    ("mistyped", "message", "hint"),
    [
        ("tinny", "timm has no model 'tinny'", "did you mean tiny?"),
        ("xxxxxxx", "timm has no model 'xxxxxxx'", "list_models"),
        ("tiny.a1", "timm has no weights 'a1' of tiny", "did you mean tiny.a1_in1k"),
    ],
)
def test_did_you_mean(mistyped: str, message: str, hint: str, fake: Fake) -> None:
    fake()
    with pytest.raises(RecipeError, match=message) as raised:
        recipe(mistyped)
    assert hint in raised.value.remedy


@installed
@pytest.mark.parametrize(
    "name", ["test_resnet", "test_vit", "test_efficientnet.r160_in1k", "test_convnext", "convnext_atto"]
)
def test_the_installed_timm(name: str) -> None:
    made = recipe(name)
    with pytest.warns(UserWarning, match="random weights: the pretrained weights of .* cannot be fetched"):
        model = made.load("auto")
    with torch.no_grad():
        a, b = (model(made.inputs(batch=2)) for _ in range(2))
    assert a.shape == (2, 1000)
    assert (a - b).square().mean().sqrt() > 0.01 * a.square().mean().sqrt()


@installed
def test_cached_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    from huggingface_hub import constants
    from safetensors.torch import save_file

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--timm--test_resnet.r160_in1k"
    file = folder / "snapshots" / "0123" / "model.safetensors"
    file.parent.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")
    there = timm.create_model("test_resnet")
    save_file(there.state_dict(), file)
    model = recipe("test_resnet").load("auto")
    assert model.exporter_weights == "pretrained"
    assert torch.equal(model.fc.weight, there.fc.weight)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(RecipeError, match="pretrained weights of test_resnet cannot be read") as raised:
        recipe("test_resnet").load("auto")
    assert str(file) in raised.value.remedy


@installed
def test_every_model_of_timm_has_inputs() -> None:
    import timm

    for name in timm.list_models()[::7]:
        made = recipe(name)
        assert recipes.ranges(made) == {"batch": Range(1, 32)}
        assert made.inputs().shape[0] == 1
