"""Artifacts with one entry for each of several sizes, for sizes that cannot stay dynamic."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from exporter.core import contract as contracts
from exporter.core.contract_records import Contract, TensorSpec
from exporter.model.torchscript import codegen

if TYPE_CHECKING:
    import onnx
    import torch


def name(size: int) -> str:
    """Return the name of the entry for a size, in every format."""
    return f"entry_{size}"


def script_module(entries: Mapping[int, torch.jit.ScriptModule], contract: Contract) -> torch.jit.ScriptModule:
    """Return a script module that calls the entry for the size of its input. Tensors shared by entries stay shared."""
    import torch

    index, axis = contracts.selector(contract)
    inputs = codegen.arguments([spec.name for spec in contract.inputs])
    chosen = codegen.unused("size", inputs)
    shell = torch.nn.Module()
    for size, module in entries.items():
        shell.add_module(name(size), module)
    lines = [
        f"def forward(self, {', '.join(f'{i}: Tensor' for i in inputs)}) -> "
        f"Tuple[{', '.join(['Tensor'] * len(contract.outputs))}]:",
        f"    {chosen} = {inputs[index]}.size({axis})",
    ]
    for size in entries:
        lines += [f"    if {chosen} == {size}:", f"        return self.{name(size)}({', '.join(inputs)})"]
    symbol = contracts.specialized(contract)
    lines += [f'    raise RuntimeError("{symbol} is not {contract.symbols[symbol]}")', ""]
    return codegen.define(shell, "\n".join(lines))


def onnx_model(entries: Mapping[int, onnx.ModelProto], contract: Contract) -> onnx.ModelProto:
    """Return a model that branches on the size of its input. Equal weights are stored once.

    The last entry is the fallback for sizes without an entry. Raise ValueError if there are fewer than two entries.
    """
    import onnx

    index, axis = contracts.selector(contract)
    first = next(iter(entries.values()))
    inputs = [_value(value, spec) for value, spec in zip(first.graph.input, contract.inputs, strict=True)]
    outputs = [_value(value, spec) for value, spec in zip(first.graph.output, contract.outputs, strict=True)]
    shared: dict[str, onnx.TensorProto] = {}
    branches = {size: _branch(model.graph, name(size), shared) for size, model in entries.items()}
    nodes, last = _choose(branches, inputs[index].name, axis, [value.name for value in outputs])
    graph = onnx.helper.make_graph(
        [*nodes, *last],
        first.graph.name or "main",
        inputs,
        outputs,
        list(shared.values()),
    )
    made = onnx.helper.make_model(graph, opset_imports=list(first.opset_import), ir_version=first.ir_version)
    for model in entries.values():
        known = {(f.domain, f.name) for f in made.functions}
        made.functions.extend(f for f in model.functions if (f.domain, f.name) not in known)
    return made


def _choose(branches: Mapping[int, Any], selector: str, axis: int, outputs: list[str]) -> tuple[list[Any], list[Any]]:
    """Return the nodes that compare the input's size, and the outer If node; later ones are in its else branch."""
    from onnx import helper

    nodes = [helper.make_node("Shape", [selector], ["entry.size"], start=axis, end=axis + 1)]
    *others, last = branches
    nested = branches[last]
    for size in reversed(others):
        constant = helper.make_node("Constant", [], [f"entry.{size}"], value_ints=[size])
        equal = helper.make_node("Equal", ["entry.size", f"entry.{size}"], [f"entry.is.{size}"])
        flat = helper.make_node("Squeeze", [f"entry.is.{size}"], [f"entry.if.{size}"])
        nodes += [constant, equal, flat]
        ends = outputs if size == others[0] else [f"{name(size)}.else.{output}" for output in outputs]
        chosen = helper.make_node("If", [f"entry.if.{size}"], ends, then_branch=branches[size], else_branch=nested)
        if size == others[0]:
            return nodes, [chosen]
        nested = helper.make_graph(
            [chosen], f"not_{size}", [], [helper.make_empty_tensor_value_info(end) for end in ends]
        )
    raise ValueError("at least two entries are needed")


def _branch(graph: onnx.GraphProto, prefix: str, shared: dict[str, onnx.TensorProto]) -> onnx.GraphProto:
    """Turn a graph into a branch: inputs come from the outer graph, values get the prefix, weights move outside."""
    from onnx import helper

    names = {value.name: value.name for value in graph.input} | {"": ""}
    for tensor in graph.initializer:
        moved = type(tensor)()
        moved.CopyFrom(tensor)
        moved.name = ""
        moved.name = f"weight.{hashlib.sha256(moved.SerializeToString()).hexdigest()[:24]}"
        shared.setdefault(moved.name, moved)
        names[tensor.name] = moved.name
    ends = [f"{prefix}.{value.name}" for value in graph.output]
    direct = [value.name for value in graph.output if value.name in names]
    nodes = [_renamed(node, names, prefix) for node in graph.node]
    nodes += [helper.make_node("Identity", [names[value]], [f"{prefix}.{value}"]) for value in direct]
    return helper.make_graph(nodes, prefix, [], [helper.make_empty_tensor_value_info(end) for end in ends])


def _renamed(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> onnx.NodeProto:
    """Return a copy of the node, with the values in it and its subgraphs renamed."""
    import onnx

    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.name = f"{prefix}.{node.name}" if node.name else ""
    made.input[:] = [names.get(value, f"{prefix}.{value}") for value in node.input]
    made.output[:] = [names.get(value, f"{prefix}.{value}") for value in node.output]
    for attribute in made.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            inner = [_renamed(child, names, prefix) for child in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
            for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                value.name = names.get(value.name, f"{prefix}.{value.name}")
    return made


def _value(value: onnx.ValueInfoProto, spec: TensorSpec) -> onnx.ValueInfoProto:
    """Return a value with the shape of the contract, because each entry has a different shape."""
    from onnx import helper

    return helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, spec.shape)
