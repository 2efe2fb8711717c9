"""Recipes from torchvision's metadata: suitable inputs, offline weights, and random weights that reveal errors."""

from __future__ import annotations

import inspect
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

from exporter.core.errors import RecipeError
from exporter.core.size_range import Range
from exporter.model import recipes
from exporter.model.sources import _weights

FAMILIES = [
    "efficientnet_b0",
    "mnasnet0_5",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "lraspp_mobilenet_v3_large",
    "raft_small",
]
pytestmark = pytest.mark.filterwarnings("ignore:.*quantiz:DeprecationWarning", "ignore:.*quantiz:UserWarning")


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # hide weights that this machine has cached


def recipe(name: str) -> Any:
    return recipes.load(recipes.find(f"torchvision:{name}"))


def call(model: nn.Module, inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def first(output: Any) -> torch.Tensor:
    """Return the main output."""
    if isinstance(output, dict):
        return output["out"]  # type: ignore[no-any-return]
    return output[-1] if isinstance(output, list) else output  # type: ignore[no-any-return]


def test_a_source_of_recipes() -> None:
    source = recipes.find("torchvision:resnet18")
    assert (source.kind, source.place, source.label) == ("source", "torchvision", "resnet18")
    assert "torchvision" in recipes.sources()


@pytest.mark.parametrize("name", models.list_models())
def test_every_model_has_inputs_and_sizes(name: str) -> None:
    made = recipe(name)
    sizes = recipes.example_sizes(made.inputs)
    assert "batch" in sizes
    assert recipes.ranges(made).keys() == ({"batch"} if "fpn" not in name and "ssd" not in name else set())
    inputs = made.inputs(**{size: value for size, value in sizes.items() if size == "batch"})
    tensors = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs.values()))
    assert len(tensors) == sizes["batch"]
    assert tensors[0].shape[0] == 3
    assert tensors[0].shape[-1] == tensors[0].shape[-2]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("inception_v3", (1, 3, 299, 299)),
        ("efficientnet_b4", (1, 3, 380, 380)),
        ("vit_h_14", (1, 3, 518, 518)),
        ("swin_v2_t", (1, 3, 256, 256)),
        ("deeplabv3_resnet50", (1, 3, 520, 520)),
        ("mc3_18", (1, 3, 16, 112, 112)),
        ("mvit_v2_s", (1, 3, 16, 224, 224)),
    ],
)
def test_images_have_the_size_of_the_weights(name: str, shape: tuple[int, ...]) -> None:
    assert recipe(name).inputs().shape == shape


@pytest.mark.parametrize("name", ["vit_b_16", "maxvit_t", "swin_t", "mvit_v1_b"])
def test_a_model_with_one_image_size_has_no_size_parameter(name: str) -> None:
    assert set(recipes.example_sizes(recipe(name).inputs)) == {"batch"}


def test_a_chosen_image_size() -> None:
    resnet, inception, raft = recipe("resnet18"), recipe("inception_v3"), recipe("raft_small")
    assert resnet.inputs(batch=2, image=160).shape == (2, 3, 160, 160)
    assert "image" not in resnet.sizes
    with pytest.raises(RecipeError, match="inception_v3 takes no image of 32 pixels") as raised:
        inception.inputs(image=32)
    assert raised.value.remedy == "choose at least 75"
    assert len(call(raft.load("random"), raft.inputs(num_flow_updates=2))) == 2
    with pytest.raises(RecipeError, match="raft_small takes no image of 130 pixels") as raised:
        raft.inputs(image=130)
    assert "multiple of 8" in raised.value.remedy


@pytest.mark.parametrize("name", FAMILIES)
def test_random_weights_follow_the_input(name: str) -> None:
    """With torchvision's own random weights, many of these return the same output for any input, to seven digits."""
    made = recipe(name)
    model = made.load("random")
    assert model.exporter_weights == "random"
    assert not any(module.training for module in model.modules())
    smaller = {"image": 128}
    with torch.no_grad():
        a, b = (first(call(model, made.inputs(**smaller))) for _ in range(2))
    assert torch.isfinite(a).all()
    assert (a - b).square().mean().sqrt() > 0.01 * a.square().mean().sqrt()


def test_batch_norm_is_not_the_identity() -> None:
    norms = [module for module in recipe("mobilenet_v2").load("random").modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        assert norm.momentum == 0.1
        for statistic in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
            assert statistic is not None
            assert statistic.std() > 0


def test_random_weights_are_the_same_for_the_same_seed() -> None:
    torch.manual_seed(3)
    one = recipe("mobilenet_v3_small").load("random").state_dict()
    torch.manual_seed(3)
    other = recipe("mobilenet_v3_small").load("random").state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"])
def test_a_random_detector_finds_something(name: str) -> None:
    """With torchvision's own random weights, the first detects nothing, so every artifact would agree with it."""
    made = recipe(name)
    model = made.load("random")
    inputs = made.inputs()
    assert [tuple(image.shape) for image in inputs["images"]] == [(3, 320, 320)] * 2
    found = call(model, inputs)
    for one in found:
        assert len(one["scores"]) > 5
        assert one["scores"].max() < 0.999
        assert one["labels"].unique().numel() > 5
    assert not torch.equal(found[0]["boxes"], found[1]["boxes"])
    assert (model.transform.min_size, model.transform.max_size) == ((320,), 320 if name.startswith("ssd") else 640)


def test_a_quantized_model(tmp_path: Path) -> None:
    made = recipe("quantized_mobilenet_v2")
    model = made.load("random")
    assert any(type(module).__module__.startswith("torch.ao.nn.quantized") for module in model.modules())
    inputs = made.inputs(batch=2)
    output = call(model, inputs)
    assert not torch.equal(output[0], output[1])
    torch.jit.save(torch.jit.script(model), tmp_path / "script.pt")
    assert torch.equal(torch.jit.load(tmp_path / "script.pt")(inputs), output)  # packed for the same engine


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("googlenet", {"aux1.fc2.weight", "aux2.fc2.weight"}),
        ("deeplabv3_mobilenet_v3_large", {"aux_classifier.4.weight"}),
    ],
)
def test_a_checkpoint_of_the_pretrained_model_fits(name: str, keys: set[str]) -> None:
    """The builders choose different layers when they are given weights."""
    model = recipe(name).load("random")
    assert keys <= model.state_dict().keys()
    assert getattr(model, "transform_input", True)


@pytest.mark.parametrize(
    ("mistyped", "hint"),
    [("resnet19", "resnet18"), ("ResNet18", "resnet18"), ("deeplab", "deeplabv3"), ("", "lists them")],
)
def test_did_you_mean(mistyped: str, hint: str) -> None:
    with pytest.raises(RecipeError, match="torchvision has no model") as raised:
        recipes.load(recipes.Source("source", "torchvision", mistyped))
    assert hint in raised.value.remedy


class _Unreachable:
    """A network that cannot resolve the requested hosts."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _Unreachable())
    made = recipe("squeezenet1_1")
    with pytest.warns(UserWarning, match=r"random weights: the pretrained weights of squeezenet1_1 cannot be fetched"):
        assert made.load("auto").exporter_weights == "random"
    with pytest.raises(RecipeError, match="pretrained weights of squeezenet1_1 cannot be fetched") as raised:
        made.load("pretrained")
    assert "--weights random" in raised.value.remedy


def test_a_host_that_does_not_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a timeout, urllib waits as long as the network does."""
    monkeypatch.setattr(_weights, "PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(models.get_model_weights("squeezenet1_1").DEFAULT.value, "url", _address(silent))
        with pytest.raises(RecipeError, match=r"cannot be fetched: .*timed out"):
            recipe("squeezenet1_1").load("pretrained")
    assert socket.getdefaulttimeout() is None


def _address(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}/weights-12345678.pth"


def _cached(name: str, tmp_path: Path) -> Path:
    weights = models.get_model_weights(name).DEFAULT
    path = tmp_path / "hub" / "checkpoints" / Path(weights.url).name
    path.parent.mkdir(parents=True)
    return path


def test_cached_weights_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", _Unreachable())
    there = models.squeezenet1_1()
    torch.save(there.state_dict(), _cached("squeezenet1_1", tmp_path))
    model = recipe("squeezenet1_1").load("auto")
    assert model.exporter_weights == "pretrained"
    assert model.exporter_origin.startswith("https://download.pytorch.org/models/squeezenet1_1-")
    assert torch.equal(model.features[0].weight, there.features[0].weight)


@pytest.mark.parametrize("weights", ["auto", "pretrained"])
def test_truncated_cached_weights(weights: str, tmp_path: Path) -> None:
    path = _cached("squeezenet1_1", tmp_path)
    torch.save(models.squeezenet1_1().state_dict(), path)
    path.write_bytes(path.read_bytes()[:10_000])
    with pytest.raises(RecipeError, match="pretrained weights of squeezenet1_1 cannot be read") as raised:
        recipe("squeezenet1_1").load(weights)
    assert str(path) in raised.value.remedy


def test_only_the_batch_is_dynamic() -> None:
    made = recipe("deeplabv3_mobilenet_v3_large")
    assert list(inspect.signature(made.inputs).parameters) == ["batch", "image"]
    assert recipes.ranges(made) == {"batch": Range(1, 32)}
