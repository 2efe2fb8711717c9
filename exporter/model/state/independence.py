"""Proving that state influences no output, with torch.export's graph of a model as a function of its state."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import OutputKind

from exporter.model import mixture_of_experts, recurrent
from exporter.model.state.flow import SHAPE_ONLY
from exporter.model.state.snapshot import Place
from exporter.model.state.stateful import State
from exporter.model.tensors import Tensors

_aten = torch.ops.aten


def unread(module: torch.nn.Module, example: Tensors, state: State) -> tuple[Place, ...]:
    """Return the places in `state.doubted` that provably influence no output of this or a later call.

    `example` consists of inputs and state.
    """
    try:
        with torch.no_grad(), recurrent.kept(), mixture_of_experts.dense(module):
            program = torch.export.export(module, example, strict=False).run_decompositions()
    except Exception:  # a model that torch.export rejects proves nothing
        return ()
    kinds = {spec.kind for spec in program.graph_signature.output_specs}
    if kinds != {OutputKind.USER_OUTPUT}:
        return ()
    count = len(state.paths)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"][-count:]
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results = list(output.args[0])
    following = dict(zip(inputs, results[len(results) - count :], strict=True))
    asserted = (node for node in program.graph.nodes if node.op == "call_function" and node.is_impure())
    reached = _origins((*results[: len(results) - count], *asserted))
    while more := [node for node in following if node in reached and not _origins([following[node]]) <= reached]:
        reached |= _origins(following[node] for node in more)
    return tuple(p for p, node in zip(state.paths, inputs, strict=True) if p in state.doubted and node not in reached)


def _origins(nodes: Iterable[object]) -> set[fx.Node]:
    """Return these nodes and all nodes that they are computed from."""
    found: set[fx.Node] = set()
    waiting = [node for node in nodes if isinstance(node, fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += _read(node)
    return found


def _read(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose values an operator reads.

    An output of a batch normalization in training does not depend on the running statistics.
    """
    if node.target in SHAPE_ONLY:
        return [one for one in node.all_input_nodes if one is not node.args[0]]
    if node.target is not operator.getitem or node.args[1] not in (0, 1, 2):
        return node.all_input_nodes
    given: Any = node.args[0]
    if given.target is not _aten._native_batch_norm_legit_functional.default or not given.args[5]:
        return node.all_input_nodes
    return [one for one in given.args[:3] if isinstance(one, fx.Node)]
