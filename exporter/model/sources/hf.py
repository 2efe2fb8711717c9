"""Models of transformers: `hf:ID` or `hf:ID@REVISION` from the hub, its cache or a folder; `hf:bert`, a small one.

An ID's model is of the class that its configuration names, or of the one for `--task`, in float32; code that comes with
a repository is never run. The name of an architecture (a `model_type`) gives the bare model, or the one for `--task`,
in a configuration that is small enough to be made within a second, without a network.
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

summary = (
    "hf:ID, a model of transformers from the hub or a folder; hf:bert and the like, a small one with random weights"
)


def recipe(name: str, source: Source) -> HfRecipe:
    """The recipe of an architecture, a folder or an ID. RecipeError says what is wrong with it, and what to do."""
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
    """One class of transformers with one configuration; `config_path` is None where there are no weights for it."""

    def __init__(self, name: str, model_class: Any, config: Any, config_path: Path | None) -> None:
        self._name, self._class, self._config, self._path = name, model_class, config, config_path
        _set_padding(model_class, config)
        try:
            self.inputs = _hf_inputs.of(model_class, config)
        except ImportError as error:  # a stand-in for a class whose library is not installed
            raise _unusable(f"{name} cannot be used here", error) from error
        self.sizes = self.inputs.sizes

    def load(self, weights: str) -> torch.nn.Module:
        """The model in eval mode, in float32. With `auto` random weights stand in, with a warning, for absent ones."""
        if self._path is None:
            if weights == "pretrained":
                raise RecipeError(
                    f"{self._name} is an architecture, and has no weights of its own",
                    "give a model's ID, as hf:ORGANISATION/NAME, or the folder that holds it",
                )
            return _with_plain_experts(self._random())
        if weights == "random":
            return self._random()
        try:
            return self._pretrained(self._path)
        except _hf_hub.NotHere as error:
            if weights == "pretrained":
                raise
            warnings.warn(f"random weights: {error}; --weights pretrained insists", stacklevel=2)
        return self._random()

    def _pretrained(self, config_path: Path) -> torch.nn.Module:
        files = _hf_hub.weight_files(self._name, config_path)
        if quantized := getattr(self._config, "quantization_config", None):
            method = quantized.get("quant_method") if isinstance(quantized, dict) else type(quantized).__name__
            raise RecipeError(
                f"the weights of {self._name} are quantized ({method})", "give the model it was made from"
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
        except Exception as error:  # whatever a wrong file leads transformers to
            raise _unusable(f"the weights of {self._name} cannot be loaded", error) from error
        missing = sorted(found["missing_keys"])
        if len(missing) == len(model.state_dict()):
            raise RecipeError(
                f"{files[0]} holds no weight of {self._class.__name__}", "give the right folder or --task"
            )
        if missing:
            warnings.warn(f"random weights for {', '.join(missing[:4])}: {self._name} has none", stacklevel=3)
        return _weights.labelled(model, "pretrained", *_hf_hub.published(self._name, config_path.parent))

    def _random(self) -> torch.nn.Module:
        try:
            model = self._class(copy.deepcopy(self._config)).float()
        except Exception as error:  # a library that is not installed, sizes that do not fit
            raise _unusable(
                f"{self._class.__name__} cannot be made of the configuration of {self._name}", error
            ) from error
        model.eval()
        _weights.stir(model, lambda: model(**self.inputs(batch=2)))
        return _weights.labelled(model, "random")


def _set_padding(model_class: Any, config: Any) -> None:
    """A classifier on a decoder finds the last word of each row by the padding after it, and GPT-2 names none."""
    text = config.get_text_config()
    if model_class.__name__.endswith("ForSequenceClassification") and getattr(text, "pad_token_id", 0) is None:
        end = text.eos_token_id
        text.pad_token_id = end if isinstance(end, int) else 0


def _small_config(name: str) -> Any:
    from transformers import CONFIG_MAPPING

    try:
        return _hf_small.config(CONFIG_MAPPING[name])
    except Exception as error:  # what a configuration's own checks raise
        raise _unusable(f"no small configuration of {name} is known", error) from error


def _config(name: str, path: Path) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    written = _hf_hub.read_config(name, path)
    kind = written.get("model_type")
    if kind not in CONFIG_MAPPING:
        if "auto_map" in written:
            raise _hf_classes.remote_code(name)
        if kind is not None:
            raise RecipeError(f"transformers does not know {kind}, the model_type of {name}", "update transformers")
    try:
        config = AutoConfig.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # values that do not fit the configuration's fields, no model_type
        raise _unusable(f"{path} is no configuration that transformers takes", error) from error
    config._attn_implementation = None  # it may name compiled code on the hub; transformers then takes its own
    return config


def _unusable(cause: str, error: Exception) -> RecipeError:
    recipe = "write a recipe FILE.py:NAME, with functions NAME and NAME_inputs"
    remedy = "install what it names" if isinstance(error, ImportError) else recipe
    return RecipeError(f"{cause}: {source_lines.named(error)}", remedy)


def _with_plain_experts(model: Any) -> torch.nn.Module:
    """Experts as batched matrix products, which run in float64 and export everywhere; large ones would not fit so."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")
    return model  # type: ignore[no-any-return]
