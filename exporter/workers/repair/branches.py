"""The tests that a patch removes or rewrites, found by comparing two versions of a file, and instruments for them.

A test is the condition of an `if`, a `while`, an `assert` or a conditional expression. The prover requires that the
original model takes both sides of each such test; it does not rely on what a rule says that it changed.
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Iterator, Sequence

from exporter.workers.repair.records import Kind, Site
from exporter.workers.repair.source import Source, called

SAW = "__exporter_saw__"
LOGGERS = {"log", "logger", "_log", "_logger", "LOG", "LOGGER", "logging", "_LOGGER"}
LEVELS = {"debug", "info", "warning", "warn", "error", "critical", "exception", "log"}


def changed(old: Source, new: Source) -> list[Site]:
    """Return the tests of the old version that the new one lacks, or has less often, in the same function."""
    before, after = (
        collections.Counter((_function(one, node), ast.dump(node.test)) for node in _tests(one)) for one in (old, new)
    )
    sites = []
    for node in _tests(old):
        key = _function(old, node), ast.dump(node.test)
        if after[key] < before[key]:
            line, column = node.test.lineno, node.test.col_offset
            sites.append(Site(old.file, line, column, old.segment(node.test), _kind(node)))
    return sites


def instrumented(source: Source, sites: Sequence[Site]) -> bytes:
    """Return the file with each of these tests passed through the built-in function SAW; lines stay where they are."""
    wanted = {(site.line, site.column): site.key for site in sites}
    events = []
    for node in _tests(source):
        key = wanted.get((node.test.lineno, node.test.col_offset))
        if key is not None:
            start, end = source.span(node.test)
            events += [(start, 1, -end, f" {SAW}({key!r}, ("), (end, 0, -start, "))")]
    data = source.text.encode()
    for at, *_, text in sorted(events, reverse=True):
        data = data[:at] + text.encode() + data[at:]
    return data


def is_effect(statement: ast.stmt) -> bool:
    """Return whether a statement only prints, logs or warns."""
    if not isinstance(statement, ast.Expr):
        return False
    *path, name = called(statement.value).split(".")
    if not path:
        return name == "print"
    return (path == ["warnings"] and name == "warn") or (path[-1] in LOGGERS and name in LEVELS)


def is_check(node: ast.AST) -> bool:
    """Return whether a node is an assert, or an `if` that only raises."""
    if isinstance(node, ast.Assert):
        return True
    return isinstance(node, ast.If) and not node.orelse and all(isinstance(one, ast.Raise) for one in node.body)


def is_memo(node: ast.AST) -> bool:
    """Return whether a node is `if KEY not in CACHE: ...; CACHE[KEY] = VALUE`."""
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Compare):
        return False
    last = node.body[-1]
    if len(node.test.ops) != 1 or not isinstance(node.test.ops[0], ast.NotIn) or not isinstance(last, ast.Assign):
        return False
    (target, *others), key, cache = last.targets, node.test.left, node.test.comparators[0]
    if others or not isinstance(target, ast.Subscript):
        return False
    return ast.dump(target.value) == ast.dump(cache) and ast.dump(target.slice) == ast.dump(key)


def _kind(node: ast.AST) -> Kind:
    if is_check(node):
        return "check"
    if is_memo(node):
        return "memo"
    if isinstance(node, ast.If) and not node.orelse and all(map(is_effect, node.body)):
        return "effect"
    return "branch"


def _tests(source: Source) -> Iterator[ast.If | ast.While | ast.IfExp | ast.Assert]:
    for node in source.walk():
        if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
            yield node


def _function(source: Source, node: ast.AST) -> str:
    """Return the path of the outermost function around a node, with its classes."""
    names: list[str] = []
    for above in reversed(list(source.ancestors(node))):
        if isinstance(above, ast.ClassDef):
            names.append(above.name)
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return ".".join((*names, above.name))
    return ".".join(names)
