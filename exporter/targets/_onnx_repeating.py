"""Translation to ONNX of repeating each element a number of times that is a size of the input.

torch's translation repeats the dimension itself instead of a new one behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch

    return {torch.ops.aten.repeat_interleave.self_int: _interleaved}


def _interleaved(inp: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import core

    if isinstance(repeats, int):
        return core.aten_repeat_interleave_self_int(inp, repeats, dim)
    ops: Any = opset18
    rank, flat = len(inp.shape), ops.Constant(value_ints=[-1])
    if dim is None:
        inp, rank, dim = ops.Reshape(inp, flat), 1, 0
    axis = dim % rank
    before, size, after = (ops.Shape(inp, start=a, end=b) for a, b in ((0, axis), (axis, axis + 1), (axis + 1, rank)))
    times = ops.Reshape(repeats, flat)
    several = ops.Expand(
        ops.Unsqueeze(inp, ops.Constant(value_ints=[axis + 1])), ops.Concat(before, size, times, after, axis=0)
    )
    return ops.Reshape(several, ops.Concat(before, ops.Mul(size, times), after, axis=0), allowzero=1)
