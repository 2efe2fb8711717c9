"""A module or a tensor that a tensor chooses from a list: compute all, and choose among the results."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exporter.workers.repair.rules._rule import Failure, Proposal, proposal, torch_of

NOTE = "all of them are computed in every call"


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose to stack the results for `self.experts[index](x)`, and the tensors for `tensors[index]`."""
    node = next((one for one in failure.nodes if isinstance(one, ast.Subscript)), None)
    if node is None or isinstance(node.slice, (ast.Slice, ast.Tuple)) or not isinstance(node.ctx, ast.Load):
        return
    source = failure.source
    torch, items, index = torch_of(source), source.segment(node.value), source.segment(node.slice)
    above = source.parents.get(node)
    if isinstance(above, ast.Call) and above.func is node:
        arguments = source.segment(above)[len(source.segment(node)) :]
        name = source.unused("one")
        text = f"{torch}.stack([{name}{arguments} for {name} in {items}])[{index}]"
        yield proposal(source, above, [(*source.span(above), text)], f"call all of {items}, and choose a result", NOTE)
    else:
        text = f"{torch}.stack(tuple({items}))[{index}]"
        yield proposal(source, node, [(*source.span(node), text)], f"stack {items}, and choose from it", NOTE)
