"""`timm:NAME` or `timm:NAME.TAG`: any model of timm, with inputs of the size in its configuration."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn

from exporter.core.errors import RecipeError
from exporter.model.recipes import FunctionRecipe, Recipe, Source
from exporter.model.sources import _hf_hub, _weights

summary = "any of timm.list_models(), with the weights of a tag as NAME.TAG"

CALIBRATION = 128  # pixels per side of the images that initialise batch norm statistics, if the model accepts so few


def recipe(name: str, source: Source) -> Recipe:
    """Return the recipe of `name`. Raises RecipeError if timm is not installed or has no such model or tag."""
    timm = _library()
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        raise RecipeError(
            f"timm has no model {name!r}",
            f"did you mean {' or '.join(close)}?" if close else "timm.list_models() lists them",
        )
    architecture, _, tag = name.partition(".")
    tagged = timm.list_pretrained(f"{architecture}.*")
    if tag and name not in tagged:
        close = difflib.get_close_matches(name, tagged, n=3, cutoff=0.0)
        raise RecipeError(
            f"timm has no weights {tag!r} of {architecture}",
            f"did you mean {' or '.join(close)}?" if close else "remove the tag: the model has no pretrained weights",
        )
    return _Model(name, timm.get_pretrained_cfg(name)).recipe()


def _library() -> Any:
    try:
        import timm
    except ImportError as error:
        raise RecipeError(f"timm does not import: {error}", "pip install 'exporter[timm]'") from error
    return timm


class _Model:
    """A timm model, described by its name and configuration."""

    def __init__(self, name: str, config: Any) -> None:
        self.name, self.config = name, config
        self.channels, self.height, self.width = (int(size) for size in config.input_size)
        self.smallest = max(int(size) for size in (config.min_input_size or (1, 1, 1))[1:])

    def recipe(self) -> Recipe:
        """Return the recipe."""
        return FunctionRecipe(self._load, self._inputs(), {"batch": (1, 32)})

    def _inputs(self) -> Callable[..., torch.Tensor]:
        """Return a function that makes normalised images, `[batch, channels, image, image]`.

        It takes `image` unless the model accepts only one size.
        """

        def fixed(batch: int = 1) -> torch.Tensor:
            return torch.randn(batch, self.channels, self.height, self.width)

        def sized(batch: int = 1, image: int = self.height) -> torch.Tensor:
            if image < self.smallest:
                raise RecipeError(f"{self.name} takes no image of {image} pixels", f"choose at least {self.smallest}")
            return torch.randn(batch, self.channels, image, image)

        return fixed if self._is_fixed() else sized

    def _is_fixed(self) -> bool:
        return bool(self.config.fixed_input_size) or self.height != self.width

    def _load(self, weights: str) -> nn.Module:
        has = self.config.hf_hub_id or self.config.url or self.config.file
        published = _weights.Pretrained(self._pretrained, self._cached(), self._origin(), self.config.license or "")
        return _weights.choose(weights, self.name, published if has else None, self._random)

    def _origin(self) -> str:
        """Return where timm gets the weights. The hub revision is missing because timm does not report one."""
        hub = self.config.hf_hub_id
        return f"pkg:huggingface/{hub}" if hub else self.config.url or ""

    def _pretrained(self) -> nn.Module:
        with _offline_at_once():
            return self._build(pretrained=True)

    def _random(self) -> nn.Module:
        model = self._build(pretrained=False).eval()
        inputs = self._inputs()
        image = max(self.smallest, min(self.height, CALIBRATION))
        example = inputs(batch=4) if self._is_fixed() else inputs(batch=4, image=image)
        return _weights.stir(model, lambda: model(example))

    def _build(self, **settings: Any) -> nn.Module:
        model: nn.Module = _library().create_model(self.name, **settings)
        return model

    def _cached(self) -> Path:
        """Return the file in which fetched weights are cached."""
        from huggingface_hub import try_to_load_from_cache

        if self.config.hf_hub_id:
            for file in (self.config.hf_hub_filename, "model.safetensors", "pytorch_model.bin"):
                found = try_to_load_from_cache(self.config.hf_hub_id, file) if file else None
                if isinstance(found, str):
                    return Path(found)
        name = Path(urlparse(self.config.url or "").path).name
        return Path(torch.hub.get_dir()) / "checkpoints" / (name or self.name)


@contextlib.contextmanager
def _offline_at_once() -> Iterator[None]:
    """Put the hub's client in offline mode if the hub does not answer; otherwise it retries for most of a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = not _hf_hub.online()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
