"""Example inputs of transformers models, derived from the arguments of forward and from the configuration.

An argument is passed if forward takes it and this module has a maker for it. The parameters of a maker are its dynamic
sizes, so the sizes of a model are those of all its makers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from exporter.core.errors import RecipeError
from exporter.model.sources import _hf_sizes
from exporter.model.sources._hf_sizes import Size, first, part, token

Maker = Callable[..., torch.Tensor]
CHARACTERS = 0x2000  # Unicode's first, which have most alphabets
MODALITIES = ("input_ids", "bbox", "pixel_values", "pixel_values_videos", "input_values", "input_features")
CONSTANTS = {"use_cache": False, "use_mems": False}  # no input takes the cache that forward would return
OWN_DECODER_INPUT = (
    "ForSequenceClassification",
    "ForQuestionAnswering",
    "ForTokenClassification",
)  # forward derives it from input_ids


class HfInputs:
    """`inputs(batch=1, ...)` of a model. Returns a dict by argument: tensors in forward's order, then constants."""

    def __init__(self, makers: Mapping[str, Maker], constants: Mapping[str, bool], sizes: Mapping[str, Size]) -> None:
        self._makers, self._constants = dict(makers), dict(constants)
        taken = {size for maker in makers.values() for size in inspect.signature(maker).parameters}
        sizes = {name: size for name, size in sizes.items() if name in taken}
        self.sizes = {name: (size.min, size.max) for name, size in sizes.items()}
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=s.default) for n, s in sizes.items()]
        )

    def __call__(self, **sizes: int) -> dict[str, Any]:
        """Return inputs at these sizes (by default the example's), drawn from torch's global generator."""
        bound = self.__signature__.bind(**sizes)
        bound.apply_defaults()
        tensors = {}
        for name, maker in self._makers.items():
            tensors[name] = maker(**{size: bound.arguments[size] for size in inspect.signature(maker).parameters})
        return tensors | self._constants


def of(model_class: Any, config: Any) -> HfInputs:
    """Return inputs for a class and configuration. Raises RecipeError if a required argument is unsupported."""
    parameters = inspect.signature(model_class.forward).parameters
    known = _Known(model_class, config)
    makers = {name: maker for name in parameters if (maker := known.maker(name)) is not None}
    needed = {name for name, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    main = model_class.main_input_name
    needed = (needed - {"self"}) | set([main] if isinstance(main, str) else main) & set(parameters)
    needed |= {name for name in MODALITIES if name in parameters}  # without them a part of the model would not run
    if missing := sorted(needed - set(makers)) or ([] if makers else ["its inputs"]):
        raise RecipeError(
            f"{model_class.__name__} takes {', '.join(missing)}, for which hf: has no example",
            "write a recipe FILE.py:NAME, with functions NAME and NAME_inputs, or choose another class with --task",
        )
    constants = {name: value for name, value in CONSTANTS.items() if name in parameters}
    return HfInputs(makers, constants, known.sizes)


class _Known:
    """The makers of one model's arguments, and their sizes."""

    def __init__(self, model_class: Any, config: Any) -> None:
        self.name, self.config = model_class.__name__, config
        self.parameters = inspect.signature(model_class.forward).parameters
        self.text = part(config, "text_config", "text_encoder", "encoder")
        self.decoder = part(config, "decoder", "text_config")
        self.vision = part(config, "vision_config", "encoder")
        self.audio = part(config, "audio_config", "audio_encoder", "encoder")
        self.sizes = _hf_sizes.of(config, self.text, self.decoder, self.audio)

    def maker(self, argument: str) -> Maker | None:
        """Return the maker of an argument, or None if the argument is unsupported or not needed."""
        if argument in ("input_ids", "attention_mask", "token_type_ids", "bbox"):
            return self._text(argument) if "input_ids" in self.parameters else None
        if argument == "decoder_input_ids":
            return None if self.name.endswith(OWN_DECODER_INPUT) else self._decoder_input_ids
        if argument in ("pixel_values", "pixel_values_videos"):
            return self._pixels(argument)
        if argument == "input_values":
            return self._waves()
        if argument == "past_values":
            return self._series()
        return self._features() if argument == "input_features" else None

    def _text(self, argument: str) -> Maker | None:
        absent = {
            "token_type_ids": (first(self.text, "type_vocab_size") or 0) < 2,
            "bbox": first(self.config, "max_2d_position_embeddings") is None,
        }
        if _vocabulary(self.text) is None or absent.get(argument):
            return None
        makers = {
            "input_ids": self._input_ids,
            "attention_mask": _mask,
            "token_type_ids": _segments,
            "bbox": self._boxes,
        }
        return _several(makers[argument]) if self.name.endswith("ForMultipleChoice") else makers[argument]

    @functools.cached_property
    def _words(self) -> torch.Tensor:
        return _plain_tokens(self.text)

    def _input_ids(self, batch: int, sequence: int) -> torch.Tensor:
        mask = _mask(batch, sequence)
        ids = self._words[torch.randint(len(self._words), (batch, sequence))]
        pad, end = token(self.text, "pad_token_id"), token(self.text, "eos_token_id")
        if pad is not None:
            ids[mask == 0] = pad
        if end is not None and ("decoder_input_ids" in self.parameters or self.text is not self.config):
            ids[torch.arange(batch), mask.sum(1) - 1] = end  # these models look for the end of the text
        return ids

    def _boxes(self, batch: int, sequence: int) -> torch.Tensor:
        limit = self.config.max_2d_position_embeddings
        corners = torch.randint(limit, (batch, sequence, 2, 2))
        return corners.sort(dim=2).values.flatten(2)

    def _decoder_input_ids(self, batch: int, decoder_sequence: int) -> torch.Tensor:
        words = _plain_tokens(self.decoder)
        ids = words[torch.randint(len(words), (batch, decoder_sequence))]
        start = token(self.config, "decoder_start_token_id")
        if start is not None:
            ids[:, 0] = start
        return ids

    def _pixels(self, argument: str) -> Maker | None:
        if token(self.config, "image_token_id") is not None or token(self.config, "image_token_index") is not None:
            return None  # the text would need as many image tokens as the model makes from an image
        frames = first(self.vision, "num_frames", "frames_per_clip")
        channels = first(self.vision, "num_channels", "in_channels", "in_chans") or 3
        leading = [channels] if frames is None else [frames, channels]
        size = first(self.vision, "image_size", "input_size", "crop_size")
        if size is None:
            return lambda batch, height, width: torch.randn(batch, *leading, height, width)
        sides = list(size) if isinstance(size, (list, tuple)) else [size, size]
        return lambda batch: torch.randn(batch, *leading, *sides)

    def _waves(self) -> Maker | None:
        if first(self.audio, "conv_kernel") and first(self.audio, "conv_stride"):
            return lambda batch, samples: torch.randn(batch, samples)
        length, bins = first(self.audio, "max_length"), first(self.audio, "num_mel_bins")
        if length and bins:
            return lambda batch: torch.randn(batch, length, bins)
        if first(self.config, "upsampling_ratios", "downsampling_ratios"):  # a codec such as EnCodec, Mimi or DAC
            channels = first(self.config, "audio_channels") or 1
            return lambda batch, samples: torch.randn(batch, channels, samples)
        return None

    def _series(self) -> Maker | None:
        length, channels = first(self.config, "context_length"), first(self.config, "num_input_channels")
        return (lambda batch: torch.randn(batch, length, channels)) if length and channels else None

    def _features(self) -> Maker | None:
        side, mels = first(self.audio, "spec_size"), first(self.audio, "num_mel_bins")
        if side and mels:  # CLAP folds a spectrogram of this length into a square image
            return lambda batch: torch.randn(batch, 1, side * side // mels, mels)
        width = first(self.audio, "input_feat_per_channel", "feature_projection_input_dim")
        if width:
            return lambda batch, frames: torch.randn(batch, frames, width)
        bins, positions = first(self.audio, "num_mel_bins"), first(self.audio, "max_source_positions")
        if bins and positions:
            return lambda batch: torch.randn(batch, bins, 2 * positions)  # the first convolution halves it
        return None


def _vocabulary(config: Any) -> int | None:
    """Return the number of token ids; CANINE takes any character, by its hash."""
    return first(config, "vocab_size") or (CHARACTERS if first(config, "num_hash_buckets") else None)


def _plain_tokens(config: Any) -> torch.Tensor:
    """Return token ids without special ones and without the lowest ids, which most vocabularies reserve."""
    special = {token(config, name) for name in dir(config) if name.endswith(("token_id", "token_index"))}
    count = _vocabulary(config) or 0
    return torch.tensor([token for token in range(min(1000, count // 10), count) if token not in special])


def _mask(batch: int, sequence: int) -> torch.Tensor:
    """Return a mask of ones; the last position of every other row is 0 (padding) if the row is long enough."""
    mask = torch.ones(batch, sequence, dtype=torch.long)
    if sequence > 2:
        mask[1::2, -1] = 0
    return mask


def _segments(batch: int, sequence: int) -> torch.Tensor:
    """Return segment ids of a pair of texts: 0 in the first half, 1 in the second."""
    return (torch.arange(sequence) >= (sequence + 1) // 2).long().repeat(batch, 1)


def _several(maker: Maker) -> Maker:
    """Return a maker of two choices per row: [batch, 2, sequence]."""
    return lambda batch, sequence: maker(2 * batch, sequence).unflatten(0, (batch, 2))
