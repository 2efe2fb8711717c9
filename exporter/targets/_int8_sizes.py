"""Linear layers in int8 whose input is not contiguous and has dynamic sizes, such as one that was transposed.

inductor turns them into batched products of expanded tensors, which torchao recognizes by their sizes. It compares
these with `torch.Size`, which takes no nodes of a graph: freezing fails, and the package would compute in float32.
"""

from __future__ import annotations

import sys
from typing import Any

QUANTIZER = "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer"  # its import registers torchao's patterns
SIZES = ("act_expand_size", "wgt_expand_size")


def compare_by_value() -> None:
    """Let torchao compare the values of dynamic sizes. It has no effect once torchao's quantizer is imported."""
    from torchao.quantization.pt2e.inductor_passes import x86

    passes: Any = x86
    usual = getattr(passes, "_is_valid_dequant_linear_pattern", None)
    if QUANTIZER in sys.modules or usual is None:  # another version of torchao
        return

    def make(*settings: Any) -> Any:
        return _with_values(usual(*settings))

    passes._is_valid_dequant_linear_pattern = make


def _with_values(is_valid: Any) -> Any:
    def check(match: Any) -> bool:
        given = match.kwargs
        match.kwargs = {**given, **{name: [*map(_value, given[name])] for name in SIZES if name in given}}
        try:
            return bool(is_valid(match))
        finally:
            match.kwargs = given

    return check


def _value(size: Any) -> Any:
    """Return the number or symbol that a node stands for."""
    return size.meta.get("val", size) if hasattr(size, "meta") else size
