"""Models of transformers: `hf:ID` or `hf:ID@REVISION` from the hub, its cache or a folder; `hf:bert`, a small one.

The model of an ID has the class that its configuration names, or the class for `--task`, and is in float32. Code in a
repository never runs. The name of an architecture (a `model_type`) selects the bare model, or the one for `--task`,
with a configuration that is small where its parts allow it, without a network.
"""

from __future__ import annotations

import copy
import difflib
import warnings
from pathlib import Path
from typing import Any

import torch

from exporter.core import source_lines
from exporter.core.errors import RecipeError
from exporter.model.recipes import Source
from exporter.model.sources import _hf_classes, _hf_hub, _hf_inputs, _hf_small, _weights

summary = "hf:ID, a model of transformers from the hub or a folder; hf:bert etc., a small one with random weights"


def recipe(name: str, source: Source) -> HfRecipe:
    """Return the recipe of an architecture, a folder or an ID. Raises RecipeError if it cannot be used."""
    from transformers import CONFIG_MAPPING

    if name in CONFIG_MAPPING:
        config = _small_config(name)
        return HfRecipe(name, _hf_classes.choose(name, config, source.task), config, None)
    try:
        path = _hf_hub.config_file(name)
    except RecipeError as error:
        close = difflib.get_close_matches(name, CONFIG_MAPPING, n=1, cutoff=0.6) if "/" not in name else []
        raise RecipeError(
            str(error), f"did you mean hf:{close[0]}? {error.remedy}" if close else error.remedy
        ) from error
    config = _config(name, path)
    return HfRecipe(name, _hf_classes.choose(name, config, source.task), config, path)


class HfRecipe:
    """A recipe for a class of transformers and a configuration; `config_path` is None if there are no weights."""

    def __init__(self, name: str, model_class: Any, config: Any, config_path: Path | None) -> None:
        self._name, self._class, self._config, self._path = name, model_class, config, config_path
        _set_padding(model_class, config)
        try:
            self.inputs = _hf_inputs.of(model_class, config)
        except ImportError as error:  # a placeholder for a class whose library is not installed
            raise _unusable(f"{name} cannot be used here", error) from error
        self.sizes = self.inputs.sizes

    def load(self, weights: str) -> torch.nn.Module:
        """Return the model in eval mode, in float32. `auto` replaces missing weights by random ones, with a warning."""
        if self._path is None:
            if weights == "pretrained":
                raise RecipeError(
                    f"{self._name} is an architecture and has no pretrained weights",
                    "give a model's ID, such as hf:ORGANISATION/NAME, or its folder",
                )
            return _with_plain_experts(self._random())
        if weights == "random":
            return self._random()
        try:
            return self._pretrained(self._path)
        except _hf_hub.NotHere as error:
            if weights == "pretrained":
                raise
            warnings.warn(f"random weights: {error}; --weights pretrained makes this an error", stacklevel=2)
        return self._random()

    def _pretrained(self, config_path: Path) -> torch.nn.Module:
        files = _hf_hub.weight_files(self._name, config_path)
        if quantized := getattr(self._config, "quantization_config", None):
            method = quantized.get("quant_method") if isinstance(quantized, dict) else type(quantized).__name__
            raise RecipeError(
                f"the weights of {self._name} are quantized ({method})", "give the model that it was quantized from"
            )
        try:
            model, found = self._class.from_pretrained(
                config_path.parent,
                config=self._config,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=files[0].suffix == ".safetensors",
                weights_only=True,
                output_loading_info=True,
            )
        except Exception as error:  # transformers may raise anything for a wrong file
            raise _unusable(f"the weights of {self._name} cannot be loaded", error) from error
        missing = sorted(found["missing_keys"])
        if len(missing) == len(model.state_dict()):
            raise RecipeError(f"{files[0]} has no weights of {self._class.__name__}", "give the right folder or --task")
        if missing:
            warnings.warn(
                f"random weights for {', '.join(missing[:4])}: {self._name} has no weights for them", stacklevel=3
            )
        return _weights.labelled(model, "pretrained", *_hf_hub.published(self._name, config_path.parent))

    def _random(self) -> torch.nn.Module:
        try:
            model = self._class(copy.deepcopy(self._config)).float()
        except Exception as error:  # a missing library, or inconsistent sizes
            raise _unusable(
                f"{self._class.__name__} cannot be built from the configuration of {self._name}", error
            ) from error
        model.eval()
        _weights.stir(model, lambda: model(**self.inputs(batch=8)))  # two rows are no statistics
        return _weights.labelled(model, "random")


def _set_padding(model_class: Any, config: Any) -> None:
    """Set a padding token, which a classifier on a decoder needs to find the last word; GPT-2 defines none."""
    text = config.get_text_config()
    if model_class.__name__.endswith("ForSequenceClassification") and getattr(text, "pad_token_id", 0) is None:
        end = text.eos_token_id
        text.pad_token_id = end if isinstance(end, int) else 0


def _small_config(name: str) -> Any:
    from transformers import CONFIG_MAPPING

    try:
        return _hf_small.config(CONFIG_MAPPING[name])
    except Exception as error:  # a configuration's own checks may raise anything
        raise _unusable(f"a small configuration of {name} cannot be made", error) from error


def _config(name: str, path: Path) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    written = _hf_hub.read_config(name, path)
    kind = written.get("model_type")
    if kind not in CONFIG_MAPPING:
        if "auto_map" in written:
            raise _hf_classes.remote_code(name)
        if kind is not None:
            raise RecipeError(f"transformers does not know {kind}, the model_type of {name}", "upgrade transformers")
    try:
        config = AutoConfig.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # invalid values, or no model_type
        raise _unusable(f"{path} is not a valid configuration of transformers", error) from error
    config._attn_implementation = None  # it may name compiled code on the hub; None selects transformers' own
    return config


def _unusable(cause: str, error: Exception) -> RecipeError:
    recipe = "write a recipe FILE.py:NAME, with functions NAME and NAME_inputs"
    remedy = "install what it names" if isinstance(error, ImportError) else recipe
    return RecipeError(f"{cause}: {source_lines.named(error)}", remedy)


def _with_plain_experts(model: Any) -> torch.nn.Module:
    """Compute experts as batched matrix products, which run in float64 and export everywhere but need much memory."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")
    return model  # type: ignore[no-any-return]
