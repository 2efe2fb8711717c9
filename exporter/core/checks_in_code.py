"""Finding the checks in a model's code: statements that only raise or warn on a condition. Never imports torch."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

Span = tuple[int, int, int, int]  # the first and last line, and the first and last column in them

_REPORTING = frozenset(("critical", "debug", "error", "info", "warn", "warning", "warning_once"))
_LOGGERS = frozenset(("log", "logger", "logging", "warnings"))
# Functions that a report may call, because they change nothing.
_HARMLESS = frozenset((
    "abs", "all", "any", "cpu", "detach", "dim", "float", "format", "int", "isinf", "isnan", "item", "len", "list",
    "max", "mean", "min", "numel", "repr", "round", "size", "str", "sum", "tolist", "tuple", "type",
))  # fmt: skip
# Contexts that let exceptions pass; of others that is unknown.
_HARMLESS_CONTEXTS = frozenset((
    "autocast", "catch_warnings", "device", "enable_grad", "inference_mode", "no_grad", "nullcontext",
    "record_function", "sdpa_kernel", "set_grad_enabled",
))  # fmt: skip
_LEAVING = (ast.Return, ast.Break, ast.Continue)  # in a `finally`, these drop the exception
# Exceptions with which code answers Python itself.
_ANSWERS = frozenset((
    "AttributeError", "GeneratorExit", "IndexError", "KeyError", "StopAsyncIteration", "StopIteration",
))  # fmt: skip
_NESTED = (ast.BoolOp, ast.IfExp, ast.NamedExpr, ast.comprehension)  # their parts may be used elsewhere


@dataclass(frozen=True)
class Check:
    """A check whose statement and condition have these places, and the condition's parts those in `parts`.

    It passes if each part has the value `passing`, which is None if some parts must be true and others false.
    """

    kind: str  # "an assert", "a check that raises" or "a check that warns"
    statement: Span
    condition: Span
    parts: frozenset[Span]
    passing: bool | None


@dataclass(frozen=True)
class _Code:
    checks: tuple[Check, ...] = ()
    caught: tuple[range, ...] = ()  # lines whose exceptions the code may catch
    repeating: tuple[range, ...] = ()  # lines of the conditions of while loops


def at(file: str, line: int) -> Check | None:
    """Return the first check whose condition includes this line; None if there is none or the file has no source."""
    return next((one for one in _read(file).checks if one.condition[0] <= line <= one.condition[1]), None)


def repeats(file: str, line: int) -> bool:
    """Return whether the condition of a while loop includes this line."""
    return any(line in lines for lines in _read(file).repeating)


def asked(frames: Sequence[FrameType], inside: bool = False) -> Check | None:
    """Return the check that now asks for the truth of its condition, or of a part of it, in the first of these frames.

    If `inside`, it may also run other code within its condition. The other frames are its callers in the model. Return
    None if one of them may catch the exception, because the check then chooses what the model computes.
    """
    code = frames[0].f_code
    found = list(code.co_positions())[frames[0].f_lasti // 2]
    if None in found:
        return None
    first, last, column, end = found
    span: Span = (first or 0, last or 0, column or 0, end or 0)
    checks = _read(code.co_filename).checks
    check = next((one for one in checks if _asks(one, span) or (inside and _contains(one.condition, span))), None)
    return None if check is None or any(map(_catches, frames)) else check


def _asks(check: Check, span: Span) -> bool:
    """Return whether Python, while it runs code at this place, needs the truth of a part of the check's condition.

    Python 3.11 gives the place of the whole condition or statement for each part.
    """
    return span in check.parts or span in (check.condition, check.statement)


def _contains(outer: Span, inner: Span) -> bool:
    starts = (outer[0], outer[2]) <= (inner[0], inner[2])
    return starts and (inner[1], inner[3]) <= (outer[1], outer[3])


def _catches(frame: FrameType) -> bool:
    return any(frame.f_lineno in lines for lines in _read(frame.f_code.co_filename).caught)


@functools.lru_cache(maxsize=256)
def _read(file: str) -> _Code:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return _Code()
    return _Code(tuple(_found(tree)), tuple(_caught(tree)), tuple(_repeating(tree)))


def _repeating(tree: ast.AST) -> Iterator[range]:
    for node in ast.walk(tree):
        if isinstance(node, ast.While):
            yield range(node.test.lineno, (node.test.end_lineno or 0) + 1)


def _caught(tree: ast.AST) -> Iterator[range]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Try, ast.TryStar)):
            leaves = (one for part in node.finalbody for one in ast.walk(part) if isinstance(one, _LEAVING))
            catches = bool(node.handlers) or any(leaves)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            catches = any(_name(item.context_expr) not in _HARMLESS_CONTEXTS for item in node.items)
        else:
            continue
        if catches:
            yield range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)


def _found(tree: ast.AST) -> Iterator[Check]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield _check("an assert", node, True)
        elif isinstance(node, ast.If):
            if _only_raises(node.body):
                yield _check("a check that raises", node, False)
            elif _only_raises(node.orelse):
                yield _check("a check that raises", node, True)
            elif not node.orelse and all(map(_reports, node.body)):
                yield _check("a check that warns", node, False)


def _check(kind: str, node: ast.Assert | ast.If, wanted: bool) -> Check:
    parts = list(_parts(node.test, wanted))
    values = {value for _, value in parts}
    passing = values.pop() if len(values) == 1 else None
    return Check(kind, _span(node), _span(node.test), frozenset(span for span, _ in parts), passing)


def _span(node: ast.expr | ast.stmt) -> Span:
    return node.lineno, node.end_lineno or 0, node.col_offset, node.end_col_offset or 0


def _parts(test: ast.expr, wanted: bool) -> Iterator[tuple[Span, bool | None]]:
    """Yield the place of each part of a condition, and the value that it needs so that the whole is `wanted`.

    With `and` and `or`, the whole is `wanted` if every part is.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not wanted)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _parts(part, wanted)
    else:
        inner = [node for node in ast.walk(test) if isinstance(node, _NESTED) or _negates(node) or _compares(node)]
        yield _span(test), None if inner else wanted


def _negates(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _compares(node: ast.AST) -> bool:
    """Return whether a node compares truth values, as `bool(x) is False` does, so that each may be either."""
    return isinstance(node, ast.Compare) and (
        any(isinstance(op, (ast.Is, ast.IsNot, ast.NotIn)) for op in node.ops)
        or any(isinstance(one, (ast.List, ast.Tuple)) for one in (node.left, *node.comparators))
        or any(isinstance(one, ast.Constant) and isinstance(one.value, bool) for one in (node.left, *node.comparators))
        or any(_name(one) in ("bool", "all", "any") for one in (node.left, *node.comparators))
    )


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    """Return whether statements end with a raise, and only prepare its message before that."""
    before = (ast.Assign, ast.AnnAssign, ast.Expr)
    if not body or not isinstance(body[-1], ast.Raise) or not all(isinstance(one, before) for one in body[:-1]):
        return False
    raised = body[-1].exc
    return raised is not None and (_name(raised) or _named(raised)) not in _ANSWERS


def _reports(statement: ast.stmt) -> bool:
    """Return whether a statement only prints, warns or logs."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    call, called = statement.value, statement.value.func
    owner = _named(called.value) if isinstance(called, ast.Attribute) else ""
    logs = _named(called) in _REPORTING and owner.strip("_").lower() in _LOGGERS
    inner = [node for part in (*call.args, *call.keywords) for node in ast.walk(part)]
    calls = all(_name(node) in _HARMLESS for node in inner if isinstance(node, ast.Call))
    return (logs or _named(called) == "print") and calls and not any(isinstance(one, ast.NamedExpr) for one in inner)


def _name(node: ast.AST) -> str:
    """Return the name of the function that a call calls; "" for another node."""
    return _named(node.func) if isinstance(node, ast.Call) else ""


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
