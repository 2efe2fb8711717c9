"""A TorchScript program as one graph whose weights are inputs, so that they can be moved, cast and named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

Graph = Any  # torch._C.Graph and torch._C.Node, which torch's stubs describe only in part
Node = Any
Path = tuple[str, ...]
SINGLE, DOUBLE = 6, 7  # the numbers of float32 and float64 in a graph


@dataclass
class Lifted:
    """A graph with its calls inlined, and what was lifted out of it.

    The graph takes the program's arguments; then `tensors` in order; then a device if `device` (on which the program
    was made) is set; then, if `single` is set, the number of the dtype that replaces float32. `state`
    holds attributes that stay in the graph, because the program sets them or because a graph cannot take them as an
    input; the graph's first input is then the program itself.
    """

    graph: Graph
    parameters: set[str]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    device: torch.device | None = None
    single: bool = False


def lift(scripted: torch.jit.ScriptModule) -> Lifted:
    """Take weights, constants and the device out of a program's `forward`."""
    lifted = Lifted(_inlined(scripted), {name for name, _ in scripted.named_parameters()})
    _lift_attributes(lifted, scripted)
    _lift_constants(lifted)
    _lift_device(lifted)
    _lift_single(lifted)
    if not lifted.state:
        lifted.graph.eraseInput(0)
    return lifted


def nodes(block: Any) -> Iterator[Node]:
    """Yield every node; those of inner blocks follow the node that contains them."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes(inner)


def names(values: Any) -> tuple[str, ...]:
    """Return the names of a graph's values."""
    return tuple(value.debugName() for value in values)


def captured(node: Node) -> tuple[str, ...]:
    """Return the outside values that the blocks of a node use."""
    used, made = dict[str, None](), set[str]()
    for block in node.blocks():
        inner = list(nodes(block))
        for one in (block, *(b for n in inner for b in n.blocks())):
            used |= dict.fromkeys(names(one.outputs()))
            made |= set(names(one.inputs()))
        for n in inner:
            used |= dict.fromkeys(names(n.inputs()))
            made |= set(names(n.outputs()))
    return tuple(name for name in used if name not in made)


def where(node: Node) -> str:
    """Return `file.py:12` if known: the first frame outside torch, else the first frame."""
    text = node.sourceRange()
    frames = re.findall(r'File "([^"]+)", line (\d+)', text) + re.findall(r"^(\S+)\((\d+)\): ", text, re.MULTILINE)
    own = [frame for frame in frames if "/torch/" not in frame[0] and "__torch__" not in frame[0]]
    return ":".join((own or frames)[0]) if frames else "no source line"


def _inlined(scripted: torch.jit.ScriptModule) -> Graph:
    graph: Graph = scripted.inlined_graph
    torch._C._jit_pass_inline_fork_wait(graph)
    torch._C._jit_pass_inline(graph)
    if graph.findNode("prim::CallMethod") is not None:  # a call through an interface, which freezing resolves
        graph = torch.jit.freeze(scripted.eval()).inlined_graph
    return graph


def _lift_attributes(lifted: Lifted, scripted: torch.jit.ScriptModule) -> None:
    graph = lifted.graph
    names = {id(tensor): name for name, tensor in (*scripted.named_buffers(), *scripted.named_parameters())}
    paths: dict[str, Path] = {next(graph.inputs()).debugName(): ()}
    found = [node for node in nodes(graph) if node.kind() in ("prim::GetAttr", "prim::SetAttr")]
    for node in found:
        owner = paths.get(node.inputsAt(0).debugName())
        if owner is not None and node.kind() == "prim::GetAttr" and _is_module(_value(scripted, owner, node)):
            paths[node.output().debugName()] = (*owner, node.s("name"))
    attributes = [(node, paths[name]) for node in found if (name := node.inputsAt(0).debugName()) in paths]
    set_by_program = {(*owner, node.s("name")) for node, owner in attributes if node.kind() == "prim::SetAttr"}
    inputs: dict[str, Any] = {}
    for node, owner in attributes:
        path, value = (*owner, node.s("name")), _value(scripted, owner, node)
        kept = path in set_by_program or not _is_module(value)
        if kept and (path in set_by_program or not _replace(lifted, node, value, path, names, inputs)):
            lifted.state[".".join(path)] = value
    for node, _ in reversed(attributes):
        if node.kind() == "prim::GetAttr" and not node.output().uses():
            node.destroy()


def _value(scripted: torch.jit.ScriptModule, owner: Path, node: Node) -> Any:
    value: Any = scripted
    for name in (*owner, node.s("name")):
        value = getattr(value, name)
    return value


def _is_module(value: Any) -> bool:
    return isinstance(value, torch.jit.ScriptModule)


def _replace(lifted: Lifted, node: Node, value: Any, path: Path, names: dict[int, str], inputs: dict[str, Any]) -> bool:
    """Replace an attribute by an input, a list of inputs or a constant; return False if none can represent it."""
    if isinstance(value, torch.Tensor):
        replacement = _input(lifted, value, names.get(id(value), ".".join(path)), inputs, node.output().type())
    elif isinstance(value, list) and value and all(isinstance(item, torch.Tensor) for item in value):
        kind = torch._C.TensorType.get()
        items = [
            _input(lifted, item, names.get(id(item), ".".join((*path, str(i)))), inputs, kind)
            for i, item in enumerate(value)
        ]
        made = lifted.graph.create("prim::ListConstruct", items, 1)
        made.insertBefore(node)
        made.output().setType(node.output().type())
        replacement = made.output()
    else:
        try:
            replacement = lifted.graph.insertConstant(value)
        except RuntimeError:  # a type that cannot be a constant of a graph
            return False
        replacement.node().moveBefore(node)
    node.output().replaceAllUsesWith(replacement)
    return True


def _input(lifted: Lifted, tensor: torch.Tensor, name: str, inputs: dict[str, Any], kind: Any) -> Any:
    if name not in inputs:
        inputs[name] = lifted.graph.addInput()
        inputs[name].setType(kind)
        lifted.tensors[name] = tensor
    return inputs[name]


def constant(node: Node) -> Any:
    """Return the value of a prim::Constant; None for a function's name left by inlining."""
    return None if node.output().type().kind() == "FunctionType" else node.output().toIValue()


def _lift_constants(lifted: Lifted) -> None:
    """Lift tensors that freezing or tracing embedded. Single integers stay, because they are arithmetic on sizes."""
    for node in [node for node in nodes(lifted.graph) if node.kind() == "prim::Constant"]:
        value = constant(node)
        if isinstance(value, torch.Tensor) and not is_number(value):
            name = f"constants.{len(lifted.tensors)}"
            if value.is_floating_point() and value.dim():
                lifted.parameters.add(name)
            node.output().replaceAllUsesWith(_input(lifted, value, name, {}, node.output().type()))
            node.destroy()


def is_number(tensor: torch.Tensor) -> bool:
    """Return whether a constant represents an integer."""
    return tensor.dim() == 0 and not (tensor.is_floating_point() or tensor.is_complex())


def _lift_device(lifted: Lifted) -> None:
    """Replace the device on which the program was made by an input, so that it follows the weights."""
    baked = [
        (node, device)
        for node in nodes(lifted.graph)
        if node.kind() == "prim::Constant" and isinstance(device := constant(node), torch.device)
    ]
    if not baked:
        return
    home = next((device for _, device in baked if device.type != "cpu"), baked[0][1])
    value = lifted.graph.addInput()
    value.setType(torch._C.DeviceObjType.get())
    for node, device in baked:
        if device == home:
            node.output().replaceAllUsesWith(value)
            node.destroy()
    lifted.device = home


def _lift_single(lifted: Lifted) -> None:
    """Replace a traced float32 by an input, so that it follows weights to float64; mixed dtypes fail or are wrong."""
    baked = [
        (node, index)
        for node in nodes(lifted.graph)
        if "dtype" in node.schema()
        for index, argument in enumerate(torch._C.parse_schema(node.schema()).arguments)
        if argument.name == "dtype" and _is_single(node.inputsAt(index).node())
    ]
    if not baked:
        return
    value = lifted.graph.addInput()
    value.setType(torch._C.IntType.get())
    for node, index in baked:
        node.replaceInput(index, value)
    lifted.single = True


def _is_single(node: Node) -> bool:
    return bool(node.kind() == "prim::Constant" and constant(node) == SINGLE)
