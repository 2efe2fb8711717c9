"""Rounding and absolute values of sizes, in operators that torch.export.save can write.

It has none for math.ceil, math.floor, round and abs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

Call = Callable[..., fx.Node]


def make_storable(program: torch.export.ExportedProgram) -> None:
    """Replace these functions in a program by exact equivalents, in place."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            found = [node for node in module.graph.nodes if _is_replaced(node)]
            for node in found:
                name, made = node.name, _replace(node)
                if module is program.graph_module:
                    program.graph_signature.replace_all_uses(name, made.name)
            if found:
                module.recompile()


def _is_replaced(node: fx.Node) -> bool:
    if node.target not in _EQUIVALENTS or any(digits is not None for digits in node.args[1:]):
        return False
    number = node.args[0]
    return isinstance(number, fx.Node) and isinstance(number.meta.get("val"), torch.SymFloat | torch.SymInt)


def _replace(node: fx.Node) -> fx.Node:
    """Replace a node, and return the one whose result takes its place."""

    def call(function: Any, *args: Any) -> fx.Node:
        made = node.graph.call_function(function, args)
        made.meta = {**node.meta, "val": function(*fx.map_arg(args, lambda one: one.meta["val"]))}
        return made

    with node.graph.inserting_before(node):
        made = _EQUIVALENTS[node.target](call, node.args[0])
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)
    return made


def _floor(call: Call, number: Any) -> fx.Node:
    return call(math.trunc, call(operator.floordiv, number, 1))


def _ceil(call: Call, number: Any) -> fx.Node:
    return call(operator.neg, _floor(call, call(operator.neg, number)))


def _round(call: Call, number: Any) -> fx.Node:
    """Round halves to the even number, as Python does.

    Unlike a sum with 0.5, the remainder is exact, except from -0.5 to 0, where both ways lead to 0.
    """
    below = call(operator.floordiv, number, 1)
    rest, whole = call(operator.sub, number, below), call(math.trunc, below)
    up = call(operator.add, whole, 1)
    even = call(operator.add, whole, call(operator.mod, whole, 2))
    half = call(torch.sym_ite, call(operator.eq, rest, 0.5), even, whole)
    return call(torch.sym_ite, call(operator.gt, rest, 0.5), up, half)


def _absolute(call: Call, number: Any) -> fx.Node:
    return call(torch.sym_max, number, call(operator.neg, number))


_EQUIVALENTS: dict[Any, Callable[[Call, Any], fx.Node]] = {
    math.floor: _floor,
    math.ceil: _ceil,
    round: _round,
    abs: _absolute,
    operator.abs: _absolute,
}
