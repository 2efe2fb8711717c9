"""The ranges of the dynamic sizes of transformers models, from their configurations."""

from __future__ import annotations

import importlib
import inspect
import math
from dataclasses import dataclass
from typing import Any

LONGEST = 512  # limit on the number of tokens
SAMPLES = 16_000  # one second of audio; the limit is ten


@dataclass(frozen=True)
class Size:
    """The size of the example, and its range."""

    default: int
    min: int
    max: int


def of(config: Any, text: Any, decoder: Any, audio: Any) -> dict[str, Size]:
    """Return all sizes by name, given a configuration and those of its parts."""
    shortest, side = _shortest_audio(audio), _least_side(config)
    return {
        "batch": Size(1, 1, 64),
        "sequence": _tokens(_shortest(text), _longest(text, "max_position_embeddings")),
        "decoder_sequence": _tokens(1, _longest(decoder, "max_target_positions", "max_position_embeddings")),
        "height": Size(max(64, side), max(32, side), 512),
        "width": Size(max(64, side), max(32, side), 512),
        "samples": Size(max(SAMPLES, shortest), shortest, max(10 * SAMPLES, shortest)),
        "frames": Size(100, 8, 1000),
    }


def part(config: Any, *names: str) -> Any:
    """Return the first of these sub-configurations that exists, or the configuration itself."""
    parts = (getattr(config, name, None) for name in names)
    return next((part for part in parts if hasattr(part, "model_type")), config)


def first(config: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def token(config: Any, name: str) -> int | None:
    """Return the id of a special token (the first of several), or None."""
    value = getattr(config, name, None)
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) else None


def _longest(config: Any, *names: str) -> int:
    """Return the number of tokens that the positions allow, at most LONGEST."""
    positions = first(config, *names)
    if not isinstance(positions, int) or positions < 1:
        return LONGEST
    if _counts_from_padding(config):
        positions -= (token(config, "pad_token_id") or 0) + 1
    return min(LONGEST, positions)


def _counts_from_padding(config: Any) -> bool:
    """Return whether position ids start after the padding token's id, as in RoBERTa and its derivatives."""
    try:
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    except ModuleNotFoundError:
        return False
    name = "create_position_ids_from_input_ids"
    return hasattr(module, name) or any(hasattr(part, name) for part in vars(module).values() if inspect.isclass(part))


def _shortest(config: Any) -> int:
    """Return the minimum length, above 1 for Funnel Transformers, which halve it between blocks, and for CANINE."""
    blocks, rate = first(config, "block_sizes"), first(config, "downsampling_rate")
    if isinstance(blocks, (list, tuple)):
        return int(2 ** (len(blocks) - 1)) + 1
    return int(rate) if isinstance(rate, int) and first(config, "num_hash_buckets") else 1


def _tokens(shortest: int, longest: int) -> Size:
    return Size(max(shortest, min(14, longest)), shortest, longest)


def _least_side(config: Any) -> int:
    """Return the side of the smallest square image, a multiple of 32, in which a detector finds its first boxes.

    It takes as many as it has queries from the pixels of its feature maps.
    """
    queries, strides = first(config, "num_queries"), first(config, "feat_strides")
    if strides is None and first(config, "two_stage"):
        strides = [8 * 2**level for level in range(first(config, "num_feature_levels") or 1)]
    if not isinstance(queries, int) or not isinstance(strides, (list, tuple)):
        return 0
    sides = range(32, 1024, 32)
    return next((side for side in sides if sum(math.ceil(side / stride) ** 2 for stride in strides) >= queries), 0)


def _shortest_audio(config: Any) -> int:
    """Return the number of samples that the convolutions of a speech model turn into two frames."""
    kernels, strides = first(config, "conv_kernel"), first(config, "conv_stride")
    if not isinstance(kernels, (list, tuple)) or not isinstance(strides, (list, tuple)):
        return 1
    reach = 1
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        reach = (reach - 1) * stride + kernel
    return int(reach + math.prod(strides))
