"""Translations to ONNX of reductions of a tensor along dimensions for which torch has none, or a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import core

    ops: Any = opset18

    def mean(inp: Any, dim: Any, keepdim: bool = False, dtype: int = -1) -> Any:
        # torch's translation computes with the dtype of the operand, and rounds to the given one afterwards
        if dtype in (-1, None) or inp.dtype == dtype:
            return core.aten_mean_dim(inp, dim, keepdim)
        given = ops.Cast(inp, to=dtype)
        dims = list(dim or range(len(inp.shape)))
        return ops.ReduceMean(given, ops.Constant(value_ints=dims), keepdims=int(keepdim)) if dims else given

    def extreme(reduce: Callable[..., Any]) -> Callable[..., Any]:
        # torch's translations require the dimensions
        def call(inp: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
            dims = list(dim) or list(range(len(inp.shape)))
            return reduce(inp, ops.Constant(value_ints=dims), keepdims=int(keepdim)) if dims else ops.Identity(inp)

        return call

    aten: Any = torch.ops.aten
    return {
        aten.mean.dim: mean,
        aten.amax.default: extreme(ops.ReduceMax),
        aten.amin.default: extreme(ops.ReduceMin),
    }
