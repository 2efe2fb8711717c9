"""Small configurations of transformers architectures, by rules over the names and defaults of their fields.

Every width in the tree of configurations is divided by one power of two, and every count of heads by another, so that
fields that are equal, products or multiples by default stay so. `BY_TYPE` holds the exceptions that no rule covers.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

WIDTH = 64  # lower limit for the widest hidden state, if it was wider
HEADS = 4
LAYERS = 2
VOCABULARY = 1000
PATCHES = 4  # along each side of an image
LIMITS = {
    "max_position_embeddings": 1024,
    "n_positions": 1024,
    "max_source_positions": 64,  # frames of audio, as is max_length
    "max_length": 128,
    "chunk_size": 32,  # small enough that a sequence has several chunks
}

_LAYERS = re.compile(r"(\w+_)?(num_|n_)?(hidden_|encoder_|decoder_)?layers?|depths?")
_NO_LAYERS = re.compile(r"\w*(feat_extract|feature|adapter|window|conv|select|vision|image)_(\w+_)?layers?")
_HEADS = re.compile(r"(\w+_)?(attention_heads|key_value_heads|kv_heads|n_heads?|num_heads|n_groups)")
_HEAD_WIDTH = re.compile(r"(\w+_)?(head_dim|dim_head|d_head|d_kv|rotary_dim)")
_WIDTH = re.compile(
    r"(\w+_)?(hidden_sizes?|hidden_dims?|dims?|dimension|embed_dims?|d_model|d_ff|d_inner|n_embd|n_inner|d_embed"
    r"|ffn_hidden_size|width|channels|rank|filters|intermediate_sizes?|embedding_size|projection_size|proj_size|pooler_output_size"
    r"|feature_size|conv_dim|coordinate_size|shape_size|num_groups|upsample_groups|num_pos_feats)"
)
_EXPERTS = re.compile(r"(\w+_)?(num|n)_(local_|routed_)?experts")
_CHOSEN_EXPERTS = re.compile(r"(\w+_)?(experts_per_tok|top_?k|moe_k)")
_TOKENS = re.compile(r"(\w+_)?token_(id|index)")

BY_TYPE: dict[str, dict[str, Any]] = {
    "falcon": {"hidden_size": 64, "num_attention_heads": 4},  # 71 heads by default
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},  # one entry per layer
    "esm": {"vocab_size": 33, "pad_token_id": 1},  # None by default
    "stablelm": {"num_attention_heads": 2, "num_key_value_heads": 2},  # a quarter of each head is rotated, in pairs
}
# Architectures whose parts do not fit together when they are small; these have their default configuration.
WHOLE = (
    *("cvt", "d_fine", "depth_anything", "grounding-dino", "mask2former", "maskformer", "mm-grounding-dino"),
    *("prompt_depth_anything", "rt_detr", "rt_detr_v2", "upernet", "zoedepth"),
)
AFTER_ENCODER = {"is_decoder": True, "add_cross_attention": True}  # for a decoder with a separate configuration
Fields = dict[str, Any]


@dataclass(frozen=True)
class _Reduction:
    """What all configurations of a tree have in common when they are made small."""

    scale: int  # by which widths are divided
    tokens: Mapping[int, int]  # new ids of special tokens
    images: bool  # whether images are small


def config(config_class: Any) -> Any:
    """Return a configuration whose model builds and runs within a second, but for WHOLE. Raises what the class does."""
    default = config_class()
    if default.model_type in WHOLE:
        return default
    tree = list(_tree(default))
    return _small(default, _Reduction(_scale(tree), _new_tokens(tree), _any_images(tree)))


def _tree(config: Any) -> Iterator[Any]:
    yield config
    for child in _children(config).values():
        yield from _tree(child)


def _children(config: Any) -> dict[str, Any]:
    from transformers import PretrainedConfig

    return {name: value for name, value in vars(config).items() if isinstance(value, PretrainedConfig)}


def _fields(config: Any) -> Fields:
    """Return the fields that the class declares, with their defaults, without the fields of every configuration."""
    from transformers import PretrainedConfig

    common = inspect.signature(PretrainedConfig).parameters
    declared = inspect.signature(type(config)).parameters.values()
    return {p.name: p.default for p in declared if p.name not in common and p.default is not p.empty}


def _scale(tree: Iterable[Any]) -> int:
    """Return the power of two that divides the widest hidden state and reduces it to WIDTH or slightly more."""
    widest = max((_main_width(config) for config in tree), default=WIDTH)
    scale = 2 ** max(0, int(math.log2(max(widest, 1) / WIDTH)))
    return math.gcd(scale, widest)


def _main_width(config: Any) -> int:
    names = {
        *getattr(config, "attribute_map", {}).values(),
        "hidden_size",
        "d_model",
        "dim",
        "embed_dim",
        "projection_dim",
    }
    found = [v for name in names if _WIDTH.fullmatch(name) for v in _numbers(vars(config).get(name))]
    stages = _numbers(vars(config).get("hidden_sizes"))
    return max([*found, *(width // 2 for width in stages)], default=0)


def _numbers(value: Any) -> list[int]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if type(v) is int]


def _head_scale(fields: Fields) -> int:
    """Return the power of two that divides every count of heads and keeps groups of queries intact."""
    counts = [n for name, value in fields.items() if _HEADS.fullmatch(name) for n in _numbers(value) if n > 1]
    if not counts:
        return 1
    most = max(1, min(max(counts) // HEADS, min(counts) // 2))
    return math.gcd(2 ** int(math.log2(most)), *counts)


def _new_tokens(tree: Iterable[Any]) -> dict[int, int]:
    """Map special tokens beyond the small vocabulary to ids counted down from its end, consistently across the tree."""
    tokens = (n for c in tree for name, v in vars(c).items() if _TOKENS.fullmatch(name) for n in _numbers(v))
    large = sorted({n for n in tokens if n >= VOCABULARY - 100})
    return {token: VOCABULARY - 1 - place for place, token in enumerate(large)}


def _small(config: Any, to: _Reduction, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
    fields = _fields(config)
    heads = _head_scale(fields)
    changed = {name: _shrunk(name, value, to.scale, heads, to.tokens) for name, value in fields.items()}
    changed = {name: value for name, value in changed.items() if value != fields[name]}
    for name, child in _children(config).items():
        attends = name == "decoder" and set(AFTER_ENCODER) <= set(_fields(child))
        changed[name] = _small(_own(child), to, AFTER_ENCODER if attends else {})
    images = _images(config) if to.images else {}
    return type(config)(**images | changed | BY_TYPE.get(config.model_type, {}) | dict(given))


def _own(config: Any) -> Any:
    """Replace a timm backbone by transformers' own ResNet, because timm may not be installed."""
    from transformers import CONFIG_MAPPING

    if config.model_type != "timm_backbone":
        return config
    resnet: Any = CONFIG_MAPPING["resnet"]
    return resnet(out_features=[f"stage{index}" for index in config.out_indices])


def _shrunk(name: str, value: Any, scale: int, heads: int, tokens: Mapping[int, int]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_shrunk(name, v, scale, heads, tokens) for v in value)
    if type(value) is not int:
        return value
    if _TOKENS.fullmatch(name):
        return tokens.get(value, value)
    if name.endswith("vocab_size"):
        return min(value, VOCABULARY)
    if name in LIMITS:
        return min(value, LIMITS[name])
    if _LAYERS.fullmatch(name) and not _NO_LAYERS.fullmatch(name):
        return min(value, LAYERS)
    if _HEADS.fullmatch(name):
        return -(-value // heads)
    if _EXPERTS.fullmatch(name):
        return min(value, 4)
    if _CHOSEN_EXPERTS.fullmatch(name):
        return min(value, 2)
    if _HEAD_WIDTH.fullmatch(name):
        return _divided(value * heads, scale)
    if _WIDTH.fullmatch(name) and name != "mask_input_channels":  # which are divided by 4
        return _divided(value, scale)
    return value


def _divided(width: int, scale: int) -> int:
    """Divide a width. The result is at least 2 (half heads are rotated); widths up to 8 (image channels) are kept."""
    return width if width <= 8 else max(2, -(-width // scale))


def _any_images(tree: Iterable[Any]) -> bool:
    """Return whether images may have any size; parts that attend in windows need their own."""
    return not any("window_size" in vars(config) for config in tree)


def _images(config: Any) -> Fields:
    """Return the field for a small image of PATCHES patches per side."""
    values = vars(config)
    patch, image = values.get("patch_size"), values.get("image_size")
    if not isinstance(image, int) or (patch is not None and not isinstance(patch, int)):
        return {}
    small = max(64, PATCHES * (patch or 16))
    return {"image_size": min(image, small)}
