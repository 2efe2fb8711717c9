"""Which tensors of an exported program's graph are written to, directly or through a view."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx


def aliased(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """Yield arguments that a node's result may alias or that it writes to, each with whether it writes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # for example an item of a tuple
        yield from ((argument, False) for argument in node.all_input_nodes)
        return
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    for argument in schema.arguments:
        if argument.alias_info is not None:
            value = given.get(argument.name)
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, fx.Node):
                    yield one, argument.alias_info.is_write


def is_write(node: fx.Node) -> bool:
    """Return whether an operator writes to an argument."""
    return any(wrote for _, wrote in aliased(node))


def families(graph: fx.Graph) -> list[list[fx.Node]]:
    """Return the groups of nodes whose results may share memory that is written to, each in the graph's order."""
    family: dict[fx.Node, list[fx.Node]] = {}
    written: list[fx.Node] = []
    for node in graph.nodes:
        family[node] = [node]
        for argument, writes in aliased(node) if node.op != "output" else ():
            joined = family[argument]
            if joined is not family[node]:
                joined += family[node]
                for one in family[node]:
                    family[one] = joined
            if writes:
                written.append(argument)
    return list({id(family[node]): sorted(family[node]) for node in written}.values())


def is_plain(family: list[fx.Node]) -> bool:
    """Return whether each tensor of a family is only used by the write to it, up to the last write."""
    writers = {argument: node for node in family for argument, writes in aliased(node) if writes}
    last = max(writers.values())
    return all([*node.users] == [writers.get(node)] for node in family if node < last)
