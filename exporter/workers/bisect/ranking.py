"""Ranking the layers of a program by what a lower precision costs each of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from exporter.model.precision import DTYPES
from exporter.model.tensors import Tensors
from exporter.workers.bisect import arithmetic
from exporter.workers.bisect.graphs import Graph

SECONDS = 60.0


@dataclass(frozen=True)
class Layer:
    """A layer that a precision applies to: its path in the model, and its nodes.

    `error` is that of the outputs if only this layer is in the precision, as a multiple of eager's own; None if the
    time did not suffice.
    """

    path: str
    nodes: tuple[fx.Node, ...]
    error: float | None = None

    @property
    def node(self) -> fx.Node:
        """Return the node that stands for the layer."""
        return next((node for node in self.nodes if node.target in arithmetic.LAYERS), self.nodes[-1])


def rank(graph: Graph, inputs: Tensors, precision: str) -> list[Layer]:
    """Return the layers, worst first, and last those for which the time did not suffice.

    int8 applies to products with weights, and stored weights to linear layers and embeddings. A half precision applies
    to every operator, so that the operators of one module are one layer.
    """
    module = graph.until(graph.cuts[-1])
    own, exact = arithmetic.eager(module, inputs), arithmetic.reference(module, inputs)
    started, ranked, left = time.monotonic(), list[Layer](), list[Layer]()
    for layer in _layers(graph, precision):
        if time.monotonic() - started > SECONDS:
            left.append(layer)
            continue
        names = {node.name for node in layer.nodes}
        got = arithmetic.lowered(module, inputs, names, precision, results=precision in DTYPES)
        ranked.append(Layer(layer.path, layer.nodes, max(map(arithmetic.error, got, own, exact))))
    return sorted(ranked, key=lambda one: -(one.error or 0.0)) + left


def _layers(graph: Graph, precision: str) -> Sequence[Layer]:
    if precision not in DTYPES:
        targets = arithmetic.APPLIES.get(precision, arithmetic.LAYERS)
        nodes = [node for node in graph.nodes if node.target in targets]
        return [Layer(graph.describe(node).module, (node,)) for node in nodes]
    groups: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else (value,)
        floats = any(isinstance(one, torch.Tensor) and one.dtype == torch.float32 for one in values)
        if node.op == "call_function" and floats:
            groups.setdefault(graph.describe(node).module, []).append(node)
    return [Layer(path, tuple(nodes)) for path, nodes in groups.items()]


def overflow(graph: Graph, inputs: Tensors, precision: str) -> fx.Node | None:
    """Return the first node whose result is not finite if every node is in this precision, but finite in float32."""
    module = graph.until(graph.cuts[-1])
    plain = arithmetic.Finite(module)
    low = arithmetic.Finite(module, arithmetic.ROUNDINGS[precision])
    with torch.no_grad():
        for one in (plain, low):
            one.run(*(tensor.clone() for tensor in inputs))
    names = {node.name: node for node in graph.nodes}
    lost = [name for name, finite in low.finite.items() if not finite and plain.finite.get(name)]
    return names.get(lost[0]) if lost else None
