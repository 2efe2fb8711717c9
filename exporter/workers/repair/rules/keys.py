"""A size as a key, of a cache by length: compute the value in each call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exporter.workers.repair.branches import is_memo
from exporter.workers.repair.rules._rule import Failure, Proposal, proposal
from exporter.workers.repair.source import Source, called, dotted

CACHES = {"lru_cache", "functools.lru_cache", "cache", "functools.cache"}
NOTE = "it is computed in each call"


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose to remove functools' cache from the called function, or a dict that holds a value for each size."""
    if "unhashable" not in failure.obstacle.message:
        return
    for node in failure.nodes:
        if isinstance(node, ast.Call):
            yield from _decorated(failure.source, called(node).rpartition(".")[2])
        if isinstance(node, ast.If):
            yield from _filled(failure.source, node)


def _decorated(source: Source, name: str) -> Iterator[Proposal]:
    for node in source.walk():
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for mark in node.decorator_list:
                if (called(mark) or dotted(mark)) in CACHES:
                    start, end = source.line_start(mark.lineno), source.line_end(mark.end_lineno or 0) + 1
                    yield proposal(source, mark, [(start, end, "")], f"remove the cache of {name}()", NOTE)


def _filled(source: Source, node: ast.If) -> Iterator[Proposal]:
    """Propose for `if n not in self.masks: self.masks[n] = VALUE` a local value instead of `self.masks[n]`."""
    test, function, last = node.test, source.function(node), node.body[-1]
    if not is_memo(node) or function is None or not source.alone(node):
        return
    assert isinstance(test, ast.Compare)
    assert isinstance(last, ast.Assign)
    kept = source.segment(last.targets[0])
    name = source.unused(dotted(test.comparators[0]).rpartition(".")[2] or "value")
    edits = []
    lines = [source.slice(*source.span(one)) for one in node.body[:-1]]
    if any("\n" in line for line in lines):
        return
    start, end = source.span(node)
    indent = source.indent(node) or ""
    lines = [*source.comments(start, end), *lines, f"{name} = {source.argument(last.value)}"]
    edits.append((start, end, f"\n{indent}".join(lines)))
    for one in ast.walk(function):
        if isinstance(one, ast.Subscript) and source.segment(one) == kept and source.span(one)[0] >= end:
            edits.append((*source.span(one), name))
    yield proposal(source, node, edits, f"keep no value for each size in {source.segment(test.comparators[0])}", NOTE)
