"""Floor division of floating tensors as eager computes it: with the remainder, so that 1 // 0.1 is 9 and not 10.

0.1 is a little more than a tenth in float32. AOTInductor and ONNX round the quotient to 10 before they take the floor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten: Any = torch.ops.aten
MODES = (aten.div.Tensor_mode, aten.div.Scalar_mode, aten.div_.Tensor_mode, aten.div_.Scalar_mode)
FLOORS = (aten.floor_divide.default, aten.floor_divide.Scalar, aten.floor_divide_.Tensor, aten.floor_divide_.Scalar)
DTYPES = (torch.float32, torch.float64)


def make_exact(program: torch.export.ExportedProgram) -> None:
    """Replace floor divisions in a program by what eager computes, in place."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            found = [node for node in module.graph.nodes if _is_floor(node)]
            for node in found:
                name = node.name
                result = _replace(node)
                if module is program.graph_module:
                    program.graph_signature.replace_all_uses(name, result.name)
            if found:
                module.recompile()


def _is_floor(node: fx.Node) -> bool:
    floors = node.target in FLOORS or (node.target in MODES and str(node.kwargs.get("rounding_mode")) == "floor")
    return floors and node.meta["val"].dtype in DTYPES


def _replace(node: fx.Node) -> fx.Node:
    """Replace a node, and return the one whose result takes its place."""
    target: Any = node.target
    value = node.meta["val"]
    dividend, divisor = node.args
    in_place = target._schema.name.endswith("_")
    operands: Any = fx.map_arg(node.args, lambda one: one.meta["val"])
    dtype = torch.result_type(*operands) if in_place else value.dtype

    def call(operator: Any, *args: Any, **options: Any) -> fx.Node:
        made = node.graph.call_function(operator, args, options)
        with value.fake_mode:
            given, named = fx.map_arg((args, options), lambda one: one.meta["val"])
            made.meta = {**node.meta, "val": operator(*given, **named)}
        return made

    def tensor(operand: Any) -> fx.Node:
        if not isinstance(operand, fx.Node) or not isinstance(operand.meta["val"], torch.Tensor):
            return call(aten.scalar_tensor.default, operand, dtype=dtype, device=value.device)
        cast = operand.meta["val"].dtype != dtype
        return call(aten._to_copy.default, operand, dtype=dtype) if cast else operand

    with node.graph.inserting_before(node):
        a, b = tensor(dividend), tensor(divisor)
        rest = call(aten.fmod.Tensor, a, b)
        whole = call(aten.div.Tensor, call(aten.sub.Tensor, a, rest), b)
        other_sign = call(aten.logical_xor.default, call(aten.lt.Scalar, b, 0), call(aten.lt.Scalar, rest, 0))
        below = call(aten.logical_and.default, call(aten.ne.Scalar, rest, 0), other_sign)
        whole = call(aten.where.self, below, call(aten.sub.Tensor, whole, 1), whole)
        floor = call(aten.floor.default, whole)
        rounded = call(aten.gt.Scalar, call(aten.sub.Tensor, whole, floor), 0.5)
        floor = call(aten.where.self, rounded, call(aten.add.Tensor, floor, 1), floor)
        result = call(aten.where.self, call(aten.eq.Scalar, b, 0), call(aten.div.Tensor, a, b), floor)
        if in_place:
            result = call(aten.copy_.default, dividend, result)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
    return result
