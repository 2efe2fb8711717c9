"""Printing, logging, and keeping numbers for later: leave it to Python, because a graph cannot do it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exporter.workers.repair.branches import is_effect
from exporter.workers.repair.rules._rule import Failure, Proposal, proposal, torch_of
from exporter.workers.repair.source import Source, called

COLLECTING = {"append", "extend", "add", "update", "insert"}


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose to run a statement without a result only outside of torch.compile and torch.export."""
    for source, nodes in failure.around():
        for node in nodes:
            if isinstance(node, ast.stmt) and _is_aside(source, node) and (made := _guarded(source, node)):
                yield made
                return


def _is_aside(source: Source, node: ast.stmt) -> bool:
    """Return whether a statement only prints, logs or adds to a container of the model."""
    if isinstance(node, ast.If):
        return not node.orelse and all(_is_aside(source, one) for one in node.body)
    if is_effect(node):
        return True
    path = called(node.value).split(".") if isinstance(node, ast.Expr) else []
    return len(path) == 3 and path[0] == "self" and path[2] in COLLECTING


def _guarded(source: Source, node: ast.stmt) -> Proposal | None:
    flag = f"not {torch_of(source)}.compiler.is_compiling()"
    note = "exported programs leave it out"
    if isinstance(node, ast.If):
        start, end = source.span(node.test)
        test = source.segment(node.test)
        if isinstance(node.test, (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)) or "\n" in test:
            test = f"({test})"
        return proposal(source, node, [(start, end, f"{flag} and {test}")], "do this only in Python", note)
    indent = source.indent(node)
    if indent is None or not source.alone(node) or source.has_long_strings(node):
        return None
    start, end = source.span(node)
    text = source.slice(start, end).replace("\n", "\n    ")
    return proposal(source, node, [(start, end, f"if {flag}:\n{indent}    {text}")], "do this only in Python", note)
