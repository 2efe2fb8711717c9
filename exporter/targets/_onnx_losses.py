"""The translation to ONNX of cross entropy, of which ONNX's operator has neither probabilities nor label smoothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MEAN, SUM = 1, 2  # torch's numbers of reductions


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each operator, as `torch.onnx.export` takes them."""
    import torch

    return {torch.ops.aten.cross_entropy_loss.default: _cross_entropy}


def _cross_entropy(
    inp: Any,
    target: Any,
    weight: Any = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    from onnxscript import opset18
    from onnxscript.function_libs.torch_lib.ops import common, nn

    given = target.dtype.is_floating_point()
    if not given and not label_smoothing:
        return nn.aten_cross_entropy_loss(inp, target, weight, reduction, ignore_index)
    ops: Any = opset18
    rank = len(inp.shape)
    if rank == 1 and not given:
        raise ValueError("cross_entropy of one sample with label smoothing has no translation")
    axis = min(rank - 1, 1)
    axes, count = ops.Constant(value_ints=[axis]), ops.Shape(inp, start=axis, end=axis + 1)

    def number(value: float) -> Any:
        return common.constant(value, dtype=inp.dtype)

    wanted = target
    if not given:
        used = ops.Not(ops.Equal(target, common.constant(ignore_index, dtype=target.dtype)))
        known = ops.Where(used, target, common.constant(0, dtype=target.dtype))
        ends = ops.Constant(value_floats=[0.0, 1.0])  # onnxruntime has no such kernel for float64
        wanted = ops.CastLike(ops.OneHot(known, count, ends, axis=axis), inp)
    if label_smoothing:
        share = ops.Div(number(label_smoothing), ops.CastLike(count, inp))
        wanted = ops.Add(ops.Mul(wanted, number(1 - label_smoothing)), share)
    parts = ops.Mul(ops.LogSoftmax(inp, axis=axis), wanted)
    if weight is not None:
        parts = ops.Mul(parts, ops.Reshape(weight, ops.Constant(value_ints=[-1] + [1] * (rank - 1 - axis))))
    losses = ops.Neg(ops.ReduceSum(parts, axes, keepdims=0))
    if not given:
        losses = ops.Where(used, losses, number(0.0))
    if reduction not in (MEAN, SUM):
        return losses
    if given and reduction == MEAN:
        return ops.ReduceMean(losses, keepdims=0)
    total = ops.ReduceSum(losses, keepdims=0)
    if reduction == SUM:
        return total
    each = ops.CastLike(used, inp) if weight is None else ops.Where(used, ops.Gather(weight, known), number(0.0))
    return ops.Div(total, ops.ReduceSum(each, keepdims=0))
