"""A forward that changes its inputs in a way that torch.export cannot record: let it work on copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exporter.workers.repair.rules._rule import Failure, Proposal, proposal
from exporter.workers.repair.source import Source


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose to clone the arguments that a forward changes in place, where no other expression is to blame."""
    if failure.nodes and not isinstance(failure.nodes[0], (ast.Call, ast.Subscript)):
        return
    for source in failure.sources.values():
        for node in source.walk():
            if isinstance(node, ast.FunctionDef) and isinstance(source.parents[node], ast.ClassDef):
                yield from _copied(source, node)


def _copied(source: Source, function: ast.FunctionDef) -> Iterator[Proposal]:
    arguments = [one.arg for one in (*function.args.args, *function.args.kwonlyargs) if one.arg != "self"]
    changed = [name for name in arguments if any(_changes(node, name) for node in ast.walk(function))]
    body = function.body
    docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    first = body[1] if docstring and len(body) > 1 else body[0]
    indent = source.indent(first)
    if not changed or indent is None:
        return
    start = source.span(first)[0]
    lines = "".join(f"{name} = {name}.clone()\n{indent}" for name in changed)
    edits = [(start, start, lines)]
    for node in ast.walk(function):  # what was written through .data is then recorded
        written = isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.value, ast.Name)
        if written and isinstance(node, ast.Attribute) and source.segment(node.value) in changed:
            edits.append((*source.span(node), source.segment(node.value)))
    yield proposal(source, first, edits, f"work on a copy of {', '.join(changed)}")


def _changes(node: ast.AST, name: str) -> bool:
    """Return whether a node changes the tensor of this name: `x.mul_()`, `x.data.mul_()`, `x[0] = y` or `x += y`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        return method.endswith("_") and not method.endswith("__") and _base(node.func.value) == name
    if isinstance(node, ast.AugAssign):
        return _base(node.target) == name
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(not isinstance(one, ast.Name) and _base(one) == name for one in targets)


def _base(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "data"):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
