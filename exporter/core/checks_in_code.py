"""Finding the checks in a model's code: statements that only raise or warn on a condition. Never imports torch."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Names of functions that only tell: warnings.warn, print, and the methods of a logger.
_TELLING = frozenset(("critical", "debug", "error", "info", "print", "warn", "warning", "warning_once"))
_NESTED = (ast.BoolOp, ast.IfExp, ast.NamedExpr)  # their parts may have any truth value, or be used elsewhere


@dataclass(frozen=True)
class Check:
    """A check whose condition is on these lines. It passes if each part of the condition has the value `passing`.

    `passing` is None if some parts must be true and others false.
    """

    kind: str  # "an assert", "a check that raises" or "a check that warns"
    lines: range
    passing: bool | None


def at(file: str, line: int) -> Check | None:
    """Return the check whose condition includes this line; None if there is none or the file cannot be parsed."""
    return next((check for check in _checks(file) if line in check.lines), None)


@functools.lru_cache(maxsize=64)
def _checks(file: str) -> tuple[Check, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(_found(tree))


def _found(tree: ast.AST) -> Iterator[Check]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield Check("an assert", range(node.lineno, (node.end_lineno or 0) + 1), _passing(node.test, True))
        elif isinstance(node, ast.If):
            lines = range(node.test.lineno, (node.test.end_lineno or 0) + 1)
            if _only_raises(node.body):
                yield Check("a check that raises", lines, _passing(node.test, False))
            elif _only_raises(node.orelse):
                yield Check("a check that raises", lines, _passing(node.test, True))
            elif not node.orelse and all(map(_tells, node.body)):
                yield Check("a check that warns", lines, _passing(node.test, False))


def _passing(test: ast.expr, wanted: bool) -> bool | None:
    """Return the value that each part of a condition needs so that the whole is `wanted`; None if they differ."""
    values = set(_values(test, wanted))
    return values.pop() if len(values) == 1 else None


def _values(test: ast.expr, wanted: bool) -> Iterator[bool | None]:
    """Yield the value of each part: with `and` and `or`, the whole is `wanted` if every part is."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _values(test.operand, not wanted)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _values(part, wanted)
    else:
        inner = [node for node in ast.walk(test) if isinstance(node, _NESTED) or _negates(node)]
        yield None if inner else wanted


def _negates(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    """Return whether statements end with a raise, and only prepare its message before that."""
    before = (ast.Assign, ast.AnnAssign, ast.Expr)
    return bool(body) and isinstance(body[-1], ast.Raise) and all(isinstance(one, before) for one in body[:-1])


def _tells(statement: ast.stmt) -> bool:
    """Return whether a statement only prints, warns or logs."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    called = statement.value.func
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return name in _TELLING
