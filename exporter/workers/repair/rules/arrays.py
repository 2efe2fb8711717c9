"""A detour through NumPy: the same functions of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exporter.workers.repair.rules._rule import Failure, Proposal, proposal, torch_of
from exporter.workers.repair.source import Edit, Source, called

SAME = {"abs", "exp", "log", "log1p", "sqrt", "tanh", "sin", "cos", "tan", "floor", "ceil", "sign", "square", "clip",
        "maximum", "minimum", "where", "logical_and", "logical_or", "logical_not", "cumsum", "flip"}  # fmt: skip
AWAY = {"detach", "cpu", "numpy"}


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose torch's functions for all calls of NumPy in the function, if each has one that means the same."""
    if "numpy" not in failure.obstacle.message.lower() or not failure.nodes:
        return
    source = failure.source
    function = source.function(failure.nodes[0])
    edits = _edits(source, function) if function else []
    if edits and function:
        yield proposal(source, failure.nodes[0], edits, "compute with torch instead of NumPy")


def _edits(source: Source, function: ast.FunctionDef) -> list[Edit]:
    edits: list[Edit] = []
    for node in ast.walk(function):
        name = called(node)
        if not isinstance(node, ast.Call):
            continue
        if name.startswith(("np.", "numpy.")):
            if name.partition(".")[2] not in SAME:
                return []
            edits.append((*source.span(node.func), f"{torch_of(source)}.{name.partition('.')[2]}"))
        elif name in (f"{torch_of(source)}.from_numpy", f"{torch_of(source)}.as_tensor") and len(node.args) == 1:
            start, end = source.span(node)
            first, last = source.span(node.args[0])
            edits += [(start, first, "("), (last, end, ")")]
        elif name.endswith(".numpy") and isinstance(node.func, ast.Attribute):
            value: ast.expr = node.func.value
            while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in AWAY:
                value = value.func.value
            edits.append((source.span(value)[1], source.span(node)[1], ""))
    return edits
