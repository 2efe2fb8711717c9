"""Weights that an exported program computes from others at each call, as weights: those of weight_norm, an inverse.

ONNX has no inverse, and int8 quantizes only weights ahead of the calls.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from exporter.model import folding, writes

SMALL = 1 << 20  # bytes; a program may grow by this


def fold(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program in which what is computed from weights alone is a weight; the given one if there is nothing.

    Views of weights are not computed, nor is what is random, written to, or larger than the weights that it is computed
    from. The given program is also returned if it would grow by more than SMALL.
    """
    values = _values(program)
    used = {node: known for node, known in values.items() if not values.keys() >= {*node.users}}
    found = {
        node: value
        for node, (value, sources, computed) in used.items()
        if computed and sources and isinstance(value, torch.Tensor)
    }
    replaced = set().union(*(used[node][1] for node in found)) - set().union(
        *(sources for node, (_, sources, _) in used.items() if node not in found)
    )
    growth = sum(value.nbytes for value in found.values()) - sum(values[one][0].nbytes for one in replaced)
    return _with_weights(program, found) if found and growth <= SMALL else program


Known = dict[fx.Node, tuple[Any, set[fx.Node], bool]]


def _values(program: torch.export.ExportedProgram) -> Known:
    """Return the values of the nodes that depend on no input: with the weights that each uses, and if it is computed.

    Values are kept only as long as another node may need them.
    """
    changing = {node for family in writes.families(program.graph) for node in family}
    weights = {
        node: program.state_dict[spec.target]
        for node, spec in folding.inputs(program.graph, program.graph_signature)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target in program.state_dict
        if spec.target not in program.graph_signature.buffers_to_mutate.values()
    }
    known: Known = {node: (value, {node}, False) for node, value in weights.items() if node not in changing}
    for node in program.graph.nodes:
        given = node.all_input_nodes
        if node.op != "call_function" or node in changing or not known.keys() >= {*given} or not _is_pure(node.target):
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: known[one][0])
        sources = set().union(*(known[one][1] for one in given))
        try:
            with torch.no_grad():
                value = node.target(*args, **kwargs)
        except Exception:  # an operator can raise anything, such as for a singular matrix
            continue
        most = sum(known[one][0].nbytes for one in sources) if sources else SMALL
        if isinstance(value, torch.Tensor) and value.nbytes > most:
            continue
        known[node] = value, sources, any(known[one][2] for one in given) or not _is_view(node.target)
        for one in given:
            if one not in weights and known.keys() >= {*one.users}:
                known[one] = None, *known[one][1:]
    return known


def _is_pure(target: Any) -> bool:
    """Return whether an operator draws no random numbers."""
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded not in target.tags
    return target is operator.getitem


def _is_view(target: Any) -> bool:
    """Return whether an operator's results may share memory with its arguments."""
    return target is operator.getitem or any(one.alias_info for one in target._schema.returns)


def _with_weights(
    program: torch.export.ExportedProgram, found: dict[fx.Node, torch.Tensor]
) -> torch.export.ExportedProgram:
    """Return the program with the values of these nodes as buffers, which come after its parameters."""
    module, copies, _ = folding.copied(program)
    signature, weights = copy.deepcopy(program.graph_signature), dict(program.state_dict)
    parameters = sum(spec.kind is InputKind.PARAMETER for spec in signature.input_specs)
    nodes = list(module.graph.nodes)
    for i, (node, value) in enumerate(found.items()):
        name = f"folded_{i}"
        with module.graph.inserting_before(nodes[parameters]):
            placeholder = module.graph.placeholder(name)
        placeholder.meta["val"] = node.meta["val"]
        copies[node].replace_all_uses_with(placeholder)
        spec = InputSpec(InputKind.BUFFER, TensorArgument(placeholder.name), name, persistent=True)
        signature.input_specs.insert(parameters + i, spec)
        weights[name] = value.detach().contiguous()
    module.graph.eliminate_dead_code()
    return folding.rebuilt(program, module, weights, signature)
