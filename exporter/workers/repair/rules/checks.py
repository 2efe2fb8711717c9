"""An assert, or an exception, that depends on values: keep it in Python, and let the exported program check it too."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from exporter.workers.repair.branches import is_check
from exporter.workers.repair.rules._rule import Failure, Proposal, condition, proposal, torch_of
from exporter.workers.repair.source import Source

UNCHECKED = "exported programs do not make this check"
CHECKED = "exported programs make this check too, and raise RuntimeError"
LONGEST = 120  # characters of a message that is made of the condition


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose that the program asserts the condition; else that only Python checks it."""
    node = failure.tested
    if isinstance(node, (ast.Assert, ast.If)) and is_check(node):
        yield from _asserted(failure.source, node)
        yield _left_out(failure.source, node)


def _asserted(source: Source, node: ast.Assert | ast.If) -> Iterator[Proposal]:
    indent, torch = source.indent(node), torch_of(source)
    start, end = source.span(node)
    written = source.slice(start, end)
    if indent is None or not source.alone(node) or source.has_long_strings(node) or written.startswith("elif"):
        return
    holds = condition(source, node.test)
    check = f"    {torch}._assert_async({holds}, {_message(source, node)})"
    if isinstance(node, ast.If):
        check = f"    {torch}._assert_async({torch}.logical_not({holds}), {_message(source, node)})"
        edits = [(start, start, f"if {torch}.compiler.is_compiling():\n{indent}{check}\n{indent}el")]
    else:
        lines = [f"if {torch}.compiler.is_compiling():", check, "else:", *_indented(written)]
        edits = [(start, end, f"\n{indent}".join(lines[:-1]) + f"\n{indent}" + lines[-1])]
    yield proposal(source, node, edits, "let the exported program check it with torch._assert_async", CHECKED)


def _indented(text: str) -> list[str]:
    """Return a statement one level deeper. Its lines but the first have their indentation already."""
    first, *others = text.split("\n")
    return ["\n".join([f"    {first}", *(f"    {line}" for line in others)])]


def _message(source: Source, node: ast.Assert | ast.If) -> str:
    """Return the check's own message, as a literal, if it is a constant; else one with the condition."""
    given = node.msg if isinstance(node, ast.Assert) else _raised(node)
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return json.dumps(given.value)
    test = " ".join(source.segment(node.test).split())[:LONGEST]
    return json.dumps(f"failed: {test}" if isinstance(node, ast.Assert) else f"raised because {test}")


def _raised(node: ast.If) -> ast.expr | None:
    first = node.body[0]
    error = first.exc if isinstance(first, ast.Raise) else None
    return error.args[0] if isinstance(error, ast.Call) and error.args else None


def _left_out(source: Source, node: ast.Assert | ast.If) -> Proposal:
    start, end = source.span(node.test)
    word = "or" if isinstance(node, ast.Assert) else "and"
    flag = f"{torch_of(source)}.compiler.is_compiling()"
    flag = flag if isinstance(node, ast.Assert) else f"not {flag}"
    text = source.segment(node.test)
    loose = isinstance(node.test, (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr))
    if loose or "\n" in text:
        text = f"({text})"
    edits = [(start, end, f"{flag} {word} {text}")]
    return proposal(source, node, edits, "check it only in Python", UNCHECKED)
