"""Ranking the layers of a program by what a lower precision costs each of them."""

from __future__ import annotations

import time

from torch import fx

from exporter.model.tensors import Tensors
from exporter.workers.bisect import arithmetic
from exporter.workers.bisect.graphs import Graph

SECONDS = 60.0


def rank(graph: Graph, inputs: Tensors, precision: str) -> tuple[list[tuple[float, fx.Node]], int]:
    """Return the layers, worst first, each with the error of the outputs if only that layer is in this precision.

    The errors are multiples of eager's own. Also returns the number of layers for which the time did not suffice.
    """
    layers = arithmetic.QUANTIZED if precision == "int8" else arithmetic.LAYERS
    module = graph.until(graph.cuts[-1])
    candidates = [node for node in graph.nodes if node.target in layers]
    own, exact = arithmetic.eager(module, inputs), arithmetic.reference(module, inputs)
    started, ranks = time.monotonic(), list[tuple[float, fx.Node]]()
    for node in candidates:
        if time.monotonic() - started > SECONDS:
            break
        got = arithmetic.lowered(module, inputs, {node.name}, precision)
        ranks.append((max(map(arithmetic.error, got, own, exact)), node))
    return sorted(ranks, key=lambda one: -one[0]), len(candidates) - len(ranks)
