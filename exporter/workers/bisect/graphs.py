"""Cutting an exported program: its first nodes as a module of their own, or a range of its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from exporter.core import source_lines
from exporter.workers.bisect import Node


class Graph:
    """The graph of an exported program as a module, and the positions at which it can be cut.

    `cuts` are positions in `nodes`, in order. The last one is behind the last node, where the results are the
    program's outputs.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        """Unlift the program's weights, so that the graph can run by itself."""
        self.module: Any = program.module(check_guards=False)
        graph: fx.Graph = self.module.graph
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        output: Any = graph.output_node().args[0]
        self.outputs: tuple[Any, ...] = tuple(output) if isinstance(output, (list, tuple)) else (output,)
        at = {node: position for position, node in enumerate(self.nodes)}
        self._last = [max((at.get(user, len(at)) for user in node.users), default=-1) for node in self.nodes]
        self.cuts = [position for position in range(len(self.nodes)) if self._is_cut(position)]
        self.cuts = [*(one for one in self.cuts if one < len(self.nodes) - 1), len(self.nodes) - 1]

    def _live(self, position: int) -> Iterable[fx.Node]:
        """Yield the computed nodes up to a position that a later node uses."""
        for index in range(position + 1):
            if self.nodes[index].op == "call_function" and self._last[index] > position:
                yield self.nodes[index]

    def _is_cut(self, position: int) -> bool:
        """Return whether the position follows a tensor, and later nodes use only tensors and sizes there."""
        node = self.nodes[position]
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        return not any(isinstance(node.meta.get("val"), (tuple, list)) for node in self._live(position))

    def frontier(self, position: int) -> tuple[fx.Node, ...]:
        """Return the nodes whose tensors later nodes, or the caller, use at a cut."""
        if position == len(self.nodes) - 1:
            return tuple(dict.fromkeys(node for node in self.outputs if isinstance(node, fx.Node)))
        return tuple(node for node in self._live(position) if isinstance(node.meta.get("val"), torch.Tensor))

    def until(self, position: int) -> fx.GraphModule:
        """Return a module that takes the program's inputs and returns the tensors of the frontier at a cut."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        kept = set(self.nodes[: position + 1])
        for node in self.nodes:
            if node.op == "placeholder" or (node in kept and (node.op != "get_attr" or kept & node.users.keys())):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return self._finished(graph, copies, self.frontier(position))

    def between(self, start: int, end: int) -> tuple[fx.GraphModule, tuple[fx.Node, ...]]:
        """Return the nodes behind one cut, up to another, as a module, and the nodes that are its inputs.

        Sizes that these nodes use are computed from the inputs inside the module. `start` is -1 for the beginning.
        """
        wanted = self.frontier(end)
        inside = {node for node in self.nodes[start + 1 : end + 1] if node.op == "call_function"}
        graph, copies, taken = fx.Graph(), dict[fx.Node, fx.Node](), list[fx.Node]()
        needed = [node for node in self.nodes if node in self._needed(inside, [n for n in wanted if n in inside])]
        for node in needed:
            is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
            if node.op == "placeholder" or (node.op == "call_function" and node not in inside and is_tensor):
                copies[node] = graph.placeholder(node.name.lstrip("_") or "x")
                copies[node].meta = dict(node.meta)
                taken.append(node)
        for node in needed:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return self._finished(graph, copies, [node for node in wanted if node in inside]), tuple(taken)

    def _needed(self, inside: set[fx.Node], wanted: Iterable[fx.Node]) -> set[fx.Node]:
        found, left = set[fx.Node](), list(wanted)
        while left:
            node = left.pop()
            if node in found:
                continue
            found.add(node)
            is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
            if node in inside or not is_tensor:
                left += node.all_input_nodes
        return found

    def _finished(self, graph: fx.Graph, copies: dict[fx.Node, fx.Node], results: Iterable[fx.Node]) -> fx.GraphModule:
        graph.output(tuple(copies[node] for node in results))
        made = fx.GraphModule(self.module, graph)
        return made.eval() if not made.training else made

    def describe(self, node: fx.Node, introduced: float | None = None, inherited: float | None = None) -> Node:
        """Return the record of a node."""
        modules = node.meta.get("nn_module_stack") or {}
        path = next((str(one[0]) for one in reversed(list(modules.values())) if one[0]), "")
        path = re.sub(r"^L\['self'\]\.|^(flat\.)?model(\.|$)", "", path)
        place = source_lines.place(str(node.meta.get("stack_trace") or ""))
        return Node(node.name, str(node.target), path, place, introduced, inherited)
