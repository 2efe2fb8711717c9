"""The names of precisions: a base such as int8, and layers that compute in float32 beside it.

`int8+fp32:encoder.layer.0+head` is int8 with two layers, and what is inside them, in float32.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from exporter.core.contract_records import FP32, PRECISIONS
from exporter.core.errors import UsageError

SMALL_WEIGHTS = ("fp16w", "int8w")  # weights in fewer bytes, arithmetic in float32
MIXED = ("int8", "bf16", "fp16", *SMALL_WEIGHTS)  # precisions in which layers can stay in float32
LONGEST = 80  # characters for the layers in a file's name
_MARK = "+fp32:"
_LAYERS = re.compile(r"[\w.-]+(\+[\w.-]+)*", re.ASCII)  # so that the layers can stand in a file's name


def base(precision: str) -> str:
    """Return a precision's name without the layers in float32."""
    return precision.partition("+")[0]


def kept(precision: str) -> tuple[str, ...]:
    """Return the layers that a precision's name keeps in float32."""
    layers = precision.partition(_MARK)[2]
    return tuple(layers.split("+")) if layers else ()


def mixed(precision: str, layers: Sequence[str]) -> str:
    """Return the name of a precision with more layers in float32."""
    both = dict.fromkeys((*kept(precision), *layers))
    return base(precision) + (_MARK + "+".join(both) if both else "")


def require(precision: str) -> None:
    """Raise UsageError if a precision is unknown, or cannot have layers in float32 as it is written."""
    name, plus, _ = precision.partition("+")
    if name not in PRECISIONS:
        raise UsageError(f"there is no precision {name!r}", f"choose from {', '.join(PRECISIONS)}")
    if not plus:
        return
    if name not in MIXED:
        raise UsageError(
            f"{name} has no layers to keep in float32", f"choose {', '.join(MIXED)}, or write {name} alone"
        )
    _, mark, layers = precision.partition(_MARK)
    if not mark or not _LAYERS.fullmatch(layers):
        cause = f"{precision!r} does not name layers to keep in float32"
        raise UsageError(cause, f"write {name}{_MARK}LAYER, or {name}{_MARK}LAYER+LAYER; --keep-float takes any name")


def is_valid(precision: str) -> bool:
    """Return whether `require` accepts a precision."""
    try:
        require(precision)
    except UsageError:
        return False
    return True


def in_file_name(precision: str) -> str:
    """Return what stands for a precision in a file's name: `@int8+head`; "" for fp32. Long names are hashed."""
    if precision == FP32:
        return ""
    layers = "+".join(kept(precision))
    if len(layers) > LONGEST:
        layers = hashlib.sha256(layers.encode()).hexdigest()[:16]
    return f"@{base(precision)}" + (f"+{layers}" if layers else "")
