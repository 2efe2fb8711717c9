"""A branch on values whose sides are several statements: a function for each side, and torch.cond or torch.where."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exporter.workers.repair.rules._rule import Failure, Proposal, condition, proposal, torch_of
from exporter.workers.repair.rules.where import BOTH
from exporter.workers.repair.source import FUNCTIONS, Source

UNTRACED = "torch.jit.trace refuses torch.cond; the other targets take it"


@dataclass(frozen=True)
class _Parts:
    """An `if` in parts: its condition, what the sides return, and the names that they take."""

    indent: str
    test: str
    results: tuple[str, ...]  # names; none if both sides return
    taken: tuple[str, ...]
    lines: tuple[str, ...]  # the two functions


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose a function for each side of an `if`, chosen by torch.cond, or both called and chosen by torch.where."""
    node = failure.tested
    if isinstance(node, ast.If) and (parts := _parts(failure.source, node)):
        yield _with(failure.source, node, parts, _cond(failure.source, parts), "torch.cond", UNTRACED)
        yield _with(failure.source, node, parts, _where(failure.source, parts), "torch.where", BOTH)


def _with(source: Source, node: ast.If, parts: _Parts, call: str, word: str, note: str) -> Proposal:
    start, end = source.span(node)
    comments = []
    for side in filter(None, (node.body, node.orelse)):  # those outside of the functions' lines
        comments += source.comments(start, source.line_start(_first_line(source, side)))
        start = source.span(side[-1])[1]
    start = source.span(node)[0]
    text = f"\n{parts.indent}".join((*comments, *parts.lines, call)).replace(f"\n{parts.indent}\n", "\n\n")
    what = f"write the sides of the branch as functions, and choose with {word}"
    return proposal(source, node, [(start, end, text)], what, note)


def _cond(source: Source, parts: _Parts) -> str:
    taken = "".join(f"{name}, " for name in parts.taken).strip()
    call = f"{torch_of(source)}.cond({parts.test}, if_true, if_false, ({taken}))"
    return f"{', '.join(parts.results)} = {call}" if parts.results else f"return {call}"


def _where(source: Source, parts: _Parts) -> str:
    arguments, torch = ", ".join(parts.taken), torch_of(source)
    one, other = f"if_true({arguments})", f"if_false({arguments})"
    if len(parts.results) < 2:
        call = f"{torch}.where({parts.test}, {one}, {other})"
        return f"{parts.results[0]} = {call}" if parts.results else f"return {call}"
    both = f"{torch}.where({parts.test}, a, b) for a, b in zip({one}, {other})"
    return f"{', '.join(parts.results)} = ({both})"


def _parts(source: Source, node: ast.If) -> _Parts | None:
    indent, function = source.indent(node), source.function(node)
    start, end = source.span(node)
    if indent is None or function is None or source.slice(start, end).startswith("elif") or not source.alone(node):
        return None
    if {"if_true", "if_false"} & source.names():
        return None
    sides = [node.body, node.orelse]
    returning = [bool(side) and isinstance(side[-1], ast.Return) for side in sides]
    if any(_leaves(side[:-1] if ends else side) for side, ends in zip(sides, returning, strict=True)):
        return None
    if all(returning):
        results: tuple[str, ...] = ()
    elif not any(returning):
        results = tuple(name for name in _stored(node) if _read_later(function, node, name))
        if not results:
            return None
    else:
        return None
    read = {inner.id for side in sides for one in side for inner in _loads(one)}
    read |= set(results)
    taken = tuple(name for name in _stored(node) if name in read and _known_before(source, function, node, name))
    lines: list[str] = []
    for name, side in zip(("if_true", "if_false"), sides, strict=True):
        body = _body(source, node, side, indent)
        if body is None:
            return None
        lines += [f"def {name}({', '.join(taken)}):", *body]
        if results:
            lines.append(f"    return {', '.join(results if side else _copies(results))}")
        lines.append("")
    return _Parts(indent, condition(source, node.test), results, taken, tuple(lines))


def _copies(names: Sequence[str]) -> list[str]:
    """Return expressions that do not alias the names, which torch.cond requires."""
    return [f"{name}.clone()" for name in names]


def _first_line(source: Source, side: Sequence[ast.stmt]) -> int:
    """Return the first line of a side, with the comments above it."""
    line = side[0].lineno
    while source.slice(source.line_start(line - 1), source.line_end(line - 1)).strip().startswith("#"):
        line -= 1
    return line


def _body(source: Source, node: ast.If, side: Sequence[ast.stmt], indent: str) -> list[str] | None:
    """Return the lines of one side relative to the indentation of the `if`; None if they cannot be moved."""
    if not side:
        return []
    if source.indent(side[0]) is None or (isinstance(side[0], ast.If) and side[0].lineno == node.lineno):
        return None
    first = source.line_start(_first_line(source, side))
    if source.slice(*source.span(side[0])).startswith("elif"):
        text = source.slice(first, source.span(side[-1])[1]).replace("elif", "if", 1)
        if source.has_long_strings(side[0]):
            return None
        return [f"    {line.removeprefix(indent)}" for line in text.split("\n")]
    text = source.slice(first, source.span(side[-1])[1])
    lines = text.replace("\r", "").split("\n")
    if any(line.strip() and not line.startswith(indent) for line in lines) or source.has_long_strings(node):
        return None
    return [line.removeprefix(indent) for line in lines]


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements leave their block, so that they cannot become a function."""
    kinds = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Raise, ast.Global, ast.Nonlocal)
    return any(isinstance(inner, kinds) for one in statements for inner in ast.walk(one))


def _stored(node: ast.AST) -> list[str]:
    """Return the local names that statements assign, in order."""
    found: dict[str, None] = {}
    pending = [node]
    while pending:
        one = pending.pop(0)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found[one.id] = None
        if not isinstance(one, (*FUNCTIONS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            pending += ast.iter_child_nodes(one)
    return list(found)


def _loads(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names that a statement reads; an augmented assignment reads its target."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner
        if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
            yield inner.target


def _read_later(function: ast.FunctionDef, node: ast.If, name: str) -> bool:
    """Return whether the function reads a name after a statement, or anywhere if the statement may run again."""
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    loops = any(isinstance(one, (ast.For, ast.While)) and node in ast.walk(one) for one in ast.walk(function))
    return any(
        inner.id == name and (loops or (inner.lineno, inner.col_offset) > end)
        for one in function.body
        for inner in _loads(one)
    )


def _known_before(source: Source, function: ast.FunctionDef, node: ast.If, name: str) -> bool:
    """Return whether a name has a value before a statement."""
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if name in {one.arg for one in given}:
        return True
    del source
    return any(
        isinstance(inner, ast.Name)
        and isinstance(inner.ctx, ast.Store)
        and inner.id == name
        and (inner.lineno, inner.col_offset) < (node.lineno, node.col_offset)
        for inner in ast.walk(function)
    )
