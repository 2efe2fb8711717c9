"""`torchvision:NAME`: any model that torchvision registers, with inputs of the size that its weights expect."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from exporter.core import source_lines
from exporter.core.errors import RecipeError
from exporter.model.recipes import FunctionRecipe, Recipe, Source
from exporter.model.sources import _weights

summary = "any of torchvision.models.list_models(): classification, segmentation, detection, video, optical flow"

BATCHES = {"video": (1, 8)}  # every other kind: 1 to 32
CALIBRATION = 128  # pixels per side of the images that initialise batch norm statistics, if the model accepts so few
DETECTOR_CROP = 320  # the same for detectors, cropped from full-size images; saves seconds
FRAMES = 16
HEADS = (  # last layers of detectors: name suffix, mean and standard deviation of a trained layer's output
    (r"rpn\.head\.cls_logits$", 0.0, 2.0),
    (r"classification_head\.cls_logits$", -6.0, 0.7),  # before a sigmoid: few boxes pass
    (r"(cls_score|classification_head\.module_list\.\d+(\.1)?)$", 0.0, 1.5),  # before a softmax
    (r"bbox_ctrness$", 0.0, 1.0),
    (r"bbox_pred$", 0.0, 0.3),
    (r"bbox_reg$", 2.0, 1.0),
)


def recipe(name: str, source: Source) -> Recipe:
    """Return the recipe of `name`. Raises RecipeError if torchvision has no such model or cannot be imported."""
    models = _library()
    known = models.list_models()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        raise RecipeError(
            f"torchvision has no model {name!r}",
            f"did you mean {' or '.join(close)}?" if close else "torchvision.models.list_models() lists them",
        )
    return _Model(name).recipe()


def _library() -> Any:
    try:
        from torchvision import models
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError if its operators were built for another torch
        raise RecipeError(
            f"torchvision does not import: {source_lines.message(error)}",
            f"install the torchvision release for torch {torch.__version__}, from the same index",
        ) from error
    return models


class _Model:
    """A torchvision model, described by its name and the metadata of its best weights."""

    def __init__(self, name: str) -> None:
        models = _library()
        self.name = name
        self.best = models.get_model_weights(name).DEFAULT
        parts = models.get_model_builder(name).__module__.split(".")  # torchvision.models[.detection].resnet
        self.kind = parts[2] if len(parts) > 3 else "classification"
        self.smallest: int = self.best.meta["min_size"][0]
        self.image = self._image()

    def _image(self) -> int:
        """Return the pixels per side of an example image."""
        transforms = self.best.transforms()
        size = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None)
        if size:
            return int(size[0])
        if self.kind == "optical_flow":
            return self.smallest
        return 300 if self.name.startswith("ssd300") else 320  # detectors resize their inputs

    def recipe(self) -> Recipe:
        """Return the recipe."""
        sizes = {} if self.kind == "detection" else {"batch": BATCHES.get(self.kind, (1, 32))}
        return FunctionRecipe(self._load, self._inputs(), sizes)

    # Inputs. A parameter that is not in `sizes` can be set with --size and is then fixed.

    def _inputs(self) -> Callable[..., Any]:
        makers = {
            "video": self._video_inputs,
            "detection": self._detection_inputs,
            "optical_flow": self._optical_flow_inputs,
        }
        return makers.get(self.kind, self._image_inputs)()

    def _image_inputs(self) -> Callable[..., torch.Tensor]:
        """Return a function that makes normalised images, `[batch, 3, image, image]`."""

        def fixed(batch: int = 1) -> torch.Tensor:
            return torch.randn(batch, 3, self.image, self.image)

        def sized(batch: int = 1, image: int = self.image) -> torch.Tensor:
            return torch.randn(batch, 3, self._large_enough(image), image)

        return fixed if self._is_fixed() else sized

    def _video_inputs(self) -> Callable[..., torch.Tensor]:
        """Return a function that makes normalised clips, `[batch, 3, frames, image, image]`."""

        def fixed(batch: int = 1) -> torch.Tensor:
            return torch.randn(batch, 3, FRAMES, self.image, self.image)

        def sized(batch: int = 1, frames: int = FRAMES, image: int = self.image) -> torch.Tensor:
            return torch.randn(batch, 3, frames, self._large_enough(image), image)

        return fixed if self._is_fixed() else sized

    def _detection_inputs(self) -> Callable[..., dict[str, list[torch.Tensor]]]:
        """Return a function that makes a list of `batch` images `[3, image, image]` from 0 to 1; its length is fixed.

        The images are smooth blobs, because a detector resizes its inputs, which would average noise away.
        """

        def inputs(batch: int = 2, image: int = self.image) -> dict[str, list[torch.Tensor]]:
            blobs = torch.rand(batch, 3, 20, 20)
            return {"images": list(nn.functional.interpolate(blobs, size=(image, image), mode="bilinear"))}

        return inputs

    def _optical_flow_inputs(self) -> Callable[..., dict[str, Any]]:
        """Return a function that makes two images `[batch, 3, image, image]` from -1 to 1.

        The second image is the first, moved by two pixels. Each update is an output; their number is a constant.
        """

        def inputs(batch: int = 1, image: int = self.image, num_flow_updates: int = 12) -> dict[str, Any]:
            if image % 8:
                raise RecipeError(f"{self.name} takes no image of {image} pixels", "choose a multiple of 8")
            first = torch.rand(batch, 3, self._large_enough(image), image) * 2 - 1
            return {
                "image1": first,
                "image2": first.roll((2, 2), (2, 3)),
                "num_flow_updates": num_flow_updates,
            }

        return inputs

    def _is_fixed(self) -> bool:
        """Return whether the model accepts only one image size."""
        return self.smallest >= self.image

    def _large_enough(self, image: int) -> int:
        if image < self.smallest:
            raise RecipeError(f"{self.name} takes no image of {image} pixels", f"choose at least {self.smallest}")
        return image

    # Weights.

    def _load(self, weights: str) -> nn.Module:
        cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(self.best.url).path).name
        engine = torch.backends.quantized.engine
        published = _weights.Pretrained(self._pretrained, cached, self.best.url, self.best.meta.get("license", ""))
        model = _weights.choose(weights, self.name, published, self._random)
        return _packed_for(engine, model) if self.kind == "quantization" else model

    def _pretrained(self) -> nn.Module:
        return self._build(weights=self.best, **({"quantize": True} if self.kind == "quantization" else {}))

    def _random(self) -> nn.Module:
        """Return a model of the same architecture as the pretrained one, so that its checkpoints fit."""
        model = self._build(weights=None, **self._architecture()).eval()
        if self.kind == "detection":
            return _stir_detector(model, self._detection_inputs())
        example = self._example()
        _weights.stir(model, lambda: model(*example))
        return self._quantized(model) if self.kind == "quantization" else model

    def _build(self, **settings: Any) -> nn.Module:
        model: nn.Module = _library().get_model(self.name, **settings)
        return model

    def _architecture(self) -> dict[str, Any]:
        """Return the settings that the builder chooses by itself when it gets weights."""
        if self.kind == "detection":
            return {"weights_backbone": None}
        if self.kind == "segmentation":
            return {"weights_backbone": None} | ({} if self.name.startswith("lraspp") else {"aux_loss": True})
        if self.name.startswith("vit_"):
            return {"image_size": self.smallest}
        if "googlenet" in self.name or "inception" in self.name:
            auxiliary = {"aux_logits": False} if self.kind == "quantization" else {}
            return {"init_weights": False, "transform_input": True} | auxiliary
        return {}

    def _example(self) -> tuple[torch.Tensor, ...]:
        """Return a few small inputs, in the order of the model's arguments."""
        sizes = {"batch": 2 if self.kind == "video" else 4}
        if not self._is_fixed():
            sizes["image"] = max(self.smallest, min(self.image, CALIBRATION))
        example = self._inputs()(**sizes)
        return tuple(example.values()) if isinstance(example, dict) else (example,)

    def _quantized(self, model: nn.Module) -> nn.Module:
        from torchvision.models.quantization.utils import quantize_model

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "must run observer")  # from parts that evaluation does not reach
            quantize_model(model, self.best.meta["backend"])
        return model


def _packed_for(engine: str, model: nn.Module) -> nn.Module:
    """Restore the quantized engine, which torchvision changes, and pack the weights for it.

    Engines round differently, and an artifact is packed for the default engine of the process that loads it.
    """
    from torch.ao.nn import quantized

    torch.backends.quantized.engine = engine
    layers: list[Any] = [m for m in model.modules() if isinstance(m, (quantized.Conv2d, quantized.Linear))]
    for layer in layers:
        layer.set_weight_bias(layer.weight(), layer.bias())
    return model


@torch.no_grad()
def _stir_detector(model: nn.Module, inputs: Callable[..., dict[str, list[torch.Tensor]]]) -> nn.Module:
    """Apply `stir`, then rescale the heads so that they score boxes differently and some exceed the threshold.

    Otherwise a detector with random weights finds nothing, and a wrong export would agree with it. Each layer after the
    backbone is rescaled to an output mean and standard deviation on one batch; the last layers imitate a trained model.
    """
    transform: Any = model.transform
    sides, hooks = (transform.min_size, transform.max_size), []
    crops = [image[:, :DETECTOR_CROP, :DETECTOR_CROP] for image in inputs(image=sides[0][0])["images"]]
    transform.min_size, transform.max_size = (DETECTOR_CROP,), DETECTOR_CROP
    try:
        _weights.stir(model, lambda: model(crops))
        for name, layer in model.named_modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)) and not re.match(r"backbone\.(?!fpn)", name):
                mean, std = next((wanted for end, *wanted in HEADS if re.search(end, name)), (0.0, 1.0))
                hooks.append(_scale_once(layer, mean, std))
        model(crops)
    finally:
        transform.min_size, transform.max_size = sides
        for hook in hooks:
            hook.remove()
    return model


def _scale_once(layer: Any, mean: float, std: float) -> RemovableHandle:
    """Rescale a layer on its next call: every output channel gets this mean, all channels together this deviation."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        handle.remove()
        centre = output.mean([axis for axis in range(output.dim()) if axis != 1])
        centred = output - centre.view(-1, *[1] * (output.dim() - 2))
        factor = std / float(centred.std())
        layer.weight.mul_(factor)
        if layer.bias is None:
            return output * factor
        layer.bias.sub_(centre).mul_(factor).add_(mean)
        return centred * factor + mean

    handle: RemovableHandle = layer.register_forward_hook(hook)
    return handle
