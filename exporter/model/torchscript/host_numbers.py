"""Numbers that a trace computes from sizes, as numbers instead of tensors.

A trace computes `x.shape[0] // 4` with tensors: the size, on the CPU, and a constant 4. torch.jit.load moves that
constant to the GPU with the weights. The result is then computed there, its conversion to a number waits for the GPU,
and `count *= x.shape[1]` is an error, because its tensors are on two devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_INTEGERS = {
    "aten::add": "aten::add",
    "aten::sub": "aten::sub",
    "aten::mul": "aten::mul",
    "aten::floor_divide": "aten::floordiv",
    "aten::remainder": "aten::remainder",
    "aten::maximum": "prim::max",
    "aten::minimum": "prim::min",
}
_OTHERS = frozenset(
    f"aten::{name}"
    for name in (
        "rsub", "div", "true_divide", "fmod", "pow", "neg", "abs", "floor", "ceil", "trunc", "round", "max", "min",
        "eq", "ne", "lt", "le", "gt", "ge", "to",
    )
)  # fmt: skip
_DTYPES = (torch.bool, torch.int64, torch.float64)  # which prim::NumToTensor returns


def keep(module: torch.jit.ScriptModule) -> None:
    """Compute with numbers where the trace computes with integers that are sizes or constants.

    Other arithmetic with sizes stays one of tensors on the CPU: its constants become tensors only when it runs.
    """
    graph: Any = module.graph
    rewriting = _Rewriting(graph)
    for node in list(_nodes(graph)):
        rewriting.visit(node)
    torch._C._jit_pass_dce(graph)


class _Rewriting:
    """Replaces the nodes of a graph in their order."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        aliases = graph.alias_db()
        tensors = [one for node in _nodes(graph) for one in node.outputs() if one.type().kind() == "TensorType"]
        self._written = {one.debugName() for one in tensors if aliases.has_writers(one)}
        self._numbers: dict[str, Any] = {}  # by the name of the tensor
        self._on_host: set[str] = set()

    def visit(self, node: Any) -> None:
        """Replace a node of arithmetic with sizes, or its constants."""
        name = node.kind().removesuffix("_")
        if node.kind() == "prim::NumToTensor":
            self._on_host.add(node.output().debugName())
            if node.input().type().kind() == "IntType" and self._is_unchanged(node.output()):
                self._numbers[node.output().debugName()] = node.input()
        elif node.kind() == "aten::Int" and (known := self._numbers.get(node.input().debugName())):
            node.output().replaceAllUsesWith(known)
        elif (name in _INTEGERS or name in _OTHERS) and _stays(node):
            self._compute(node, name)

    def _compute(self, node: Any, name: str) -> None:
        tensors = {at: one for at, one in enumerate(node.inputs()) if one.type().kind() == "TensorType"}
        constants = {at: one.node().t("value") for at, one in tensors.items() if _is_number(one)}
        sizes = {one.debugName() for at, one in tensors.items() if at not in constants}
        if not sizes or not self._on_host >= sizes:
            return
        whole = all(constant.dtype is torch.int64 for constant in constants.values())
        plain = name in _INTEGERS and whole and set(tensors) == {0, 1} and _is_plain(node)
        if plain and self._numbers.keys() >= sizes and self._is_unchanged(node.output()):
            with self._graph.insert_point_guard(node):
                one, other = (
                    self._graph.insertConstant(constants[at].item())
                    if at in constants
                    else self._numbers[tensor.debugName()]
                    for at, tensor in tensors.items()
                )
                number = self._integer(name, one, other)
                tensor = self._graph.insertNode(self._graph.create("prim::NumToTensor", [number], 1)).output()
            node.output().replaceAllUsesWith(tensor)
            node.destroy()
            self._numbers[tensor.debugName()] = number
        else:
            for at, constant in constants.items():
                with self._graph.insert_point_guard(node):
                    number = self._graph.insertConstant(constant.item())
                    tensor = self._graph.insertNode(self._graph.create("prim::NumToTensor", [number], 1)).output()
                node.replaceInput(at, tensor)
            tensor = node.output()
        self._on_host.add(tensor.debugName())

    def _integer(self, name: str, one: Any, other: Any) -> Any:
        """Insert the operator of integers, and return its result."""
        if name == "aten::remainder":  # that of integers ends the process if the divisor is 0
            whole = self._integer("aten::mul", self._integer("aten::floor_divide", one, other), other)
            return self._integer("aten::sub", one, whole)
        number = self._graph.insertNode(self._graph.create(_INTEGERS[name], [one, other], 1)).output()
        number.setType(torch._C.IntType.get())
        return number

    def _is_unchanged(self, tensor: Any) -> bool:
        """Return whether no other use of a tensor sees what an operator writes to it, once or in a loop."""
        if tensor.debugName() not in self._written:
            return True
        uses = tensor.uses()
        return len(uses) == 1 and uses[0].user.owningBlock() == tensor.node().owningBlock()


def _stays(node: Any) -> bool:
    """Return whether a node has one result, on the device of its operands."""
    return node.outputsSize() == 1 and not any(one.type().kind() == "DeviceObjType" for one in node.inputs())


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _is_number(value: Any) -> bool:
    node = value.node()
    if node.kind() != "prim::Constant" or not node.hasAttribute("value") or node.kindOf("value") != "t":
        return False
    constant = node.t("value")
    return constant.dim() == 0 and constant.dtype in _DTYPES and constant.device.type == "cpu"


def _is_plain(node: Any) -> bool:
    """Return whether an addition or a subtraction does not scale its second operand."""
    factors = list(node.inputs())[2:]
    return all(one.node().kind() == "prim::Constant" and one.toIValue() == 1 for one in factors)
