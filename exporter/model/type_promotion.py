"""Explicit type promotion for numbers that are used with tensors of another dtype.

torch.onnx.export converts a number to a tensor only if its dtype differs from the result's. In `clamp(x, 0, 8000.0)`
and `1.0 - n` the arguments are then mixed, and no overload takes both kinds.

Comparisons with a number are different in half precisions: eager rounds the number to the tensor's dtype, while ONNX
compares in float32. `x < 0.7` would then differ where x is 0.7 rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

ELEMENTWISE = frozenset((
    torch.ops.aten.clamp.default,
    torch.ops.aten.floor_divide.default,
    torch.ops.aten.__lshift__.Tensor,
    torch.ops.aten.__rshift__.Tensor,
    torch.ops.aten.rsub.Scalar,
))  # fmt: skip
COMPARISONS = frozenset(getattr(torch.ops.aten, name).Scalar for name in ("lt", "le", "gt", "ge", "eq", "ne"))
ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
HALF = (torch.float16, torch.bfloat16)


def make_explicit(program: torch.export.ExportedProgram) -> None:
    """Make the promotion of numbers explicit, in place.

    The tensors and numbers of ELEMENTWISE operations are converted to the dtype of the result, and numbers that are
    compared with half-precision tensors are rounded. A mask of attention gets the dtype of the queries, unless it is
    boolean: torch's kernels add masks in float32 to half-precision scores.
    """
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.target in ELEMENTWISE:
                    _promote(node)
                if node.target in COMPARISONS:
                    _round(node)
                if node.target is ATTENTION:
                    _cast_mask(node)
            module.recompile()


def _round(node: fx.Node) -> None:
    """Round the number of a comparison to the dtype of a half-precision tensor."""
    tensor, number = node.args
    if isinstance(tensor, fx.Node) and tensor.meta["val"].dtype in HALF and isinstance(number, (int, float)):
        node.args = (tensor, torch.tensor(number, dtype=tensor.meta["val"].dtype).item())


def _cast_mask(node: fx.Node) -> None:
    """Cast the mask of attention to the dtype of its output."""
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    if isinstance(mask, fx.Node) and mask.meta["val"].is_floating_point():
        cast = _promoted(node, mask, node.meta["val"].dtype)
        node.args = tuple(cast if arg is mask else arg for arg in node.args)
        node.kwargs = {name: cast if arg is mask else arg for name, arg in node.kwargs.items()}


def _promote(node: fx.Node) -> None:
    dtype = node.meta["val"].dtype
    node.args = tuple(_promoted(node, arg, dtype) for arg in node.args)
    node.kwargs = {name: _promoted(node, arg, dtype) if name != "alpha" else arg for name, arg in node.kwargs.items()}
    if node.target is torch.ops.aten.clamp.default and any(map(_is_symbolic, _bounds(node))):
        node.target = torch.ops.aten.clamp.Tensor
        node.args = (node.args[0], *(_as_tensor(node, bound, dtype) for bound in node.args[1:]))
        node.kwargs = {name: _as_tensor(node, bound, dtype) for name, bound in node.kwargs.items()}


def _bounds(node: fx.Node) -> Iterator[Any]:
    yield from node.args[1:]
    yield from node.kwargs.values()


def _is_symbolic(arg: Any) -> bool:
    """Return whether an argument is a number known only at run time: a size, or computed from one."""
    return isinstance(arg, fx.Node) and not isinstance(arg.meta.get("val"), torch.Tensor)


def _promoted(node: fx.Node, arg: Any, dtype: torch.dtype) -> Any:
    """Return a tensor argument cast to the dtype, or a number as the Python type that matches the dtype."""
    if isinstance(arg, (bool, int, float)):
        return float(arg) if dtype.is_floating_point else arg
    if not isinstance(arg, fx.Node) or _is_symbolic(arg) or arg.meta["val"].dtype == dtype:
        return arg
    return _insert(node, torch.ops.aten._to_copy.default, arg, dtype, arg.meta["val"].to(dtype))


def _as_tensor(node: fx.Node, arg: Any, dtype: torch.dtype) -> Any:
    if arg is None:
        return None
    return _insert(node, torch.ops.aten.scalar_tensor.default, arg, dtype, node.meta["val"].new_empty((), dtype=dtype))


def _insert(node: fx.Node, target: Any, arg: Any, dtype: torch.dtype, value: torch.Tensor) -> fx.Node:
    """Insert a call before the node, attributed to the same line of the model."""
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, (arg,), {"dtype": dtype})
    made.meta = {**node.meta, "val": value}
    return made
