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
_ALIASES = frozenset(
    ("aten::to", "aten::detach", "aten::view", "aten::reshape", "aten::expand")
)  # may return the input
_DTYPES = (torch.bool, torch.int64, torch.float64)  # which prim::NumToTensor returns


def keep(module: torch.jit.ScriptModule) -> None:
    """Compute with numbers where the trace computes with integers that are sizes or constants.

    Other arithmetic with sizes stays one of tensors on the CPU: its constants become tensors only when it runs.
    """
    graph: Any = module.graph
    numbers: dict[str, Any] = {}  # by the name of the tensor
    on_host: set[str] = set()
    for node in list(_nodes(graph)):
        if node.kind() == "prim::NumToTensor":
            (number,) = node.inputs()
            on_host.add(node.output().debugName())
            if number.type().kind() == "IntType" and _is_unchanged(node.output()):
                numbers[node.output().debugName()] = number
        elif node.kind() == "aten::Int" and (known := numbers.get(node.input().debugName())):
            node.output().replaceAllUsesWith(known)
        else:
            _compute(graph, node, numbers, on_host)
    torch._C._jit_pass_dce(graph)


def _compute(graph: Any, node: Any, numbers: dict[str, Any], on_host: set[str]) -> None:
    """Replace a node of arithmetic with sizes, or its constants, and add its result to the numbers or tensors."""
    name = node.kind().removesuffix("_")
    if (name not in _INTEGERS and name not in _OTHERS) or node.outputsSize() != 1:
        return
    if any(one.type().kind() == "DeviceObjType" for one in node.inputs()):
        return
    tensors = {at: one for at, one in enumerate(node.inputs()) if one.type().kind() == "TensorType"}
    constants = {at: one.node().t("value") for at, one in tensors.items() if _is_number(one)}
    sizes = [one.debugName() for at, one in tensors.items() if at not in constants]
    if not sizes or not on_host.issuperset(sizes):
        return
    integers = all(constant.dtype is torch.int64 for constant in constants.values())
    if name in _INTEGERS and integers and set(tensors) == {0, 1} and numbers.keys() >= set(sizes) and _is_plain(node):
        with graph.insert_point_guard(node):
            inputs = [
                graph.insertConstant(constants[at].item()) if at in constants else numbers[one.debugName()]
                for at, one in tensors.items()
            ]
            number = graph.insertNode(graph.create(_INTEGERS[name], inputs, 1)).output()
            number.setType(torch._C.IntType.get())
            tensor = graph.insertNode(graph.create("prim::NumToTensor", [number], 1)).output()
        node.output().replaceAllUsesWith(tensor)
        node.destroy()
        if _is_unchanged(tensor):
            numbers[tensor.debugName()] = number
    else:
        for at, constant in constants.items():
            with graph.insert_point_guard(node):
                number = graph.insertConstant(constant.item())
                tensor = graph.insertNode(graph.create("prim::NumToTensor", [number], 1)).output()
            node.replaceInput(at, tensor)
        tensor = node.output()
    on_host.add(tensor.debugName())


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


def _is_unchanged(tensor: Any) -> bool:
    """Return whether no other use of a tensor sees what an operator writes to it."""
    users = [use.user.kind() for use in tensor.uses()]
    return len(users) == 1 or not any(user.endswith("_") or user in _ALIASES for user in users)


def _is_plain(node: Any) -> bool:
    """Return whether an addition or a subtraction does not scale its second operand."""
    factors = list(node.inputs())[2:]
    return all(one.node().kind() == "prim::Constant" and one.toIValue() == 1 for one in factors)
