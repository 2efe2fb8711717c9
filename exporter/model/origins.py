"""Where the nodes of a graph come from: the module and the line of the model's source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from exporter.core import source_lines
from exporter.core.profile_records import Origin

if TYPE_CHECKING:
    from torch import fx

_PREFIX = re.compile(r"^L\['self'\]\.?|^(flat\.)?(model(\.|$))?")
_INDEX = re.compile(r"\[['\"]?(\w+)['\"]?\]")


def of(node: fx.Node) -> Origin:
    """Return the origin of a node of an exported program or of a graph that dynamo captured."""
    modules = node.meta.get("nn_module_stack") or {}
    path = next((str(one[0]) for one in reversed(list(modules.values())) if one[0]), "")
    return Origin(within(path), source_lines.place_of_node(str(node.meta.get("stack_trace") or "")), node.name)


def within(path: str) -> str:
    """Return a module's path in the user's model from its path in exporter's, or from dynamo's notation."""
    return _PREFIX.sub("", _INDEX.sub(r".\1", _PREFIX.sub("", path)).lstrip("."))


def inputs(graph: fx.Graph) -> dict[str, tuple[str, ...]]:
    """Return the names of the nodes that each computing node uses, in the order of the graph."""
    return {
        node.name: tuple(one.name for one in node.all_input_nodes)
        for node in graph.nodes
        if node.op in ("call_function", "call_method", "call_module")
    }


def claimed(kernels: Sequence[Iterable[str]], graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the nodes that each kernel computes, from the nodes that a compiler names for it.

    Compilers name the nodes of a kernel's inputs too, so a node belongs to the first kernel that names it. A node that
    none names belongs to the kernel of the first node that uses it, into which it was fused. A kernel of which nothing
    is left continues what the latest of these others began, such as a product after the concatenation of its weights.
    """
    owner: dict[str, int] = {}
    for index, names in enumerate(kernels):
        for name in names:
            if name in graph:
                owner.setdefault(name, index)
    users: dict[str, list[str]] = {}
    for name, taken in graph.items():
        for one in taken:
            users.setdefault(one, []).append(name)
    for name in reversed(list(graph)):
        if name not in owner and (found := [owner[user] for user in users.get(name, ()) if user in owner]):
            owner[name] = min(found)
    owned = [[name for name in graph if owner.get(name) == index] for index in range(len(kernels))]
    for index, names in enumerate(kernels):
        if not owned[index] and (others := [owner[name] for name in names if name in owner]):
            owned[index] = owned[max(others)]
    return owned
