"""Translations to ONNX of sampling an image at given places, which may be far away from it.

onnxruntime computes the weights of pixels from integers in float32, which do not hold a coordinate beyond 2**24, and
converts coordinates to 64-bit integers, which do not hold one beyond 2**63. So coordinates that are far outside are
brought nearer first, to where the result is the same. NaN stays; onnxruntime takes it for the first pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FAR = 16.0  # in halves of the image; beyond 7, all four pixels of a bicubic sample are outside, also if there are two
REFLECTION = 2  # torch's number of the padding


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch
    from onnxscript.function_libs.torch_lib.ops import core

    def sampled(inp: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
        near = _near(grid, padding == REFLECTION)
        return core.aten_grid_sampler(inp, near, mode, padding, align_corners)

    return {torch.ops.aten.grid_sampler.default: sampled, torch.ops.aten.grid_sampler_2d.default: sampled}


def _near(grid: Any, reflects: bool) -> Any:
    """Limit coordinates that are far outside, or reflect them at -1 and 1, the image's ends however it is aligned.

    These are not Min and Max, because onnxscript's rewriter gives the limits of two Clips of one value the same name.
    """
    from onnxscript import opset18

    ops: Any = opset18
    one, two, period, far = (ops.CastLike(ops.Constant(value_float=number), grid) for number in (1.0, 2.0, 4.0, FAR))
    size = ops.Abs(grid)
    if reflects:
        limited = ops.Sub(ops.Abs(ops.Sub(two, ops.Abs(ops.Sub(ops.Mod(size, period, fmod=1), one)))), one)
    else:
        limited = far
    return ops.Where(ops.Greater(size, far), ops.Mul(ops.Sign(grid), limited), grid)
