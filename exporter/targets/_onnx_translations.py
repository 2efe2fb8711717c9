"""Translations to ONNX of operators for which torch has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18

    def prod(inp: Any, dims: Sequence[int], output_dtype: int = 0) -> Any:
        ops: Any = opset18
        return ops.ReduceProd(inp, ops.Constant(value_ints=dims), keepdims=0)

    return {torch.ops.prims.prod.default: prod}  # torch decomposes cumprod into products
