"""A branch on values whose sides are expressions: torch.where chooses between their results."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from exporter.workers.repair.branches import is_effect
from exporter.workers.repair.rules._rule import Failure, Proposal, condition, proposal, split, torch_of
from exporter.workers.repair.source import Source

BOTH = "both sides are computed in every call"
RETURN = "return"


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose torch.where for a conditional expression, an if with one value on each side, or an early return."""
    node = failure.tested
    if isinstance(node, ast.IfExp):
        yield from _expression(failure.source, node)
    if isinstance(node, ast.If):
        yield from _statement(failure.source, node)


def _expression(source: Source, node: ast.IfExp) -> Iterator[Proposal]:
    start, end = source.span(node)
    yield proposal(source, node, [(start, end, _of(source, node))], "write the expression with torch.where", BOTH)


def _of(source: Source, node: ast.expr) -> str:
    """Return an expression with the conditional expressions at its top, nested ones included, as torch.where."""
    if not isinstance(node, ast.IfExp):
        return source.argument(node)
    one, other = _of(source, node.body), _of(source, node.orelse)
    plain, test = split(source, node.test)
    chosen = f"{torch_of(source)}.where({test}, {one}, {other})"
    return f"({chosen} if {plain} else {other})" if plain else chosen


def _statement(source: Source, node: ast.If) -> Iterator[Proposal]:
    indent = source.indent(node)
    if indent is None or not source.alone(node):
        return
    chosen = _choice(source, node)
    if chosen is not None:
        start, end = source.span(node)
        plain = "" if node.orelse else split(source, node.test)[0]
        written = [f"if {plain}:", f"    {_written(*chosen)}"] if plain else [_written(*chosen)]
        lines = [*source.comments(start, end), *_aside(source, node), *written]
        if source.slice(start, end).startswith("elif"):
            lines = ["else:", *(f"    {line}" for line in lines)]
        yield proposal(
            source, node, [(start, end, f"\n{indent}".join(lines))], "write the branch with torch.where", BOTH
        )
    yield from _early(source, node, indent)


def _written(target: str, value: str) -> str:
    return f"return {value}" if target == RETURN else f"{target} = {value}"


def _choice(source: Source, node: ast.If) -> tuple[str, str] | None:
    """Return what an `if` assigns, or RETURN, and its value as torch.where; None if its sides do anything else."""
    target, one = _only(source, asides(node.body)[1])
    if not target:
        return None
    other_target, other = (target, target) if not node.orelse and target != RETURN else _only(source, node.orelse)
    if other_target != target:
        return None
    test = condition(source, node.test) if node.orelse else split(source, node.test)[1]
    return target, f"{torch_of(source)}.where({test}, {one}, {other})"


def _aside(source: Source, node: ast.If) -> list[str]:
    """Return the lines that print or log, as the side of an `if` begins by doing, only in Python."""
    effects, _ = asides(node.body)
    if not effects:
        return []
    texts = [source.segment(one).replace("\n", "\n    ") for one in effects]
    test = source.segment(node.test)
    test = f"({test})" if isinstance(node.test, ast.BoolOp) else test
    return [f"if not {torch_of(source)}.compiler.is_compiling() and {test}:", *(f"    {text}" for text in texts)]


def asides(body: Sequence[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return the statements at the start of a body that only print or log, and the others."""
    count = next((number for number, one in enumerate(body) if not is_effect(one)), len(body))
    return list(body[:count]), list(body[count:])


def _only(source: Source, statements: Sequence[ast.stmt]) -> tuple[str, str]:
    """Return the target and the value of statements that do nothing but assign or return one value; else ("", "")."""
    if len(statements) != 1:
        return "", ""
    (node,) = statements
    if isinstance(node, ast.If):
        return _choice(source, node) or ("", "")
    if isinstance(node, ast.Return) and node.value is not None:
        return RETURN, _of(source, node.value)
    if (
        isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and not isinstance(node.targets[0], (ast.Tuple, ast.List))
    ):
        return source.segment(node.targets[0]), _of(source, node.value)
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return source.segment(node.target), _of(source, node.value)
    if isinstance(node, ast.Expr):
        return _in_place(source, node.value)
    if isinstance(node, ast.AugAssign):
        sign = source.slice(source.span(node.target)[1], source.span(node.value)[0]).strip().removesuffix("=")
        return source.segment(node.target), f"{source.segment(node.target)} {sign} {source.atom(node.value)}"
    return "", ""


def _in_place(source: Source, node: ast.expr) -> tuple[str, str]:
    """Return the target and the value of `x.mul_(2)`, which are x and `x.mul(2)`."""
    method = node.func if isinstance(node, ast.Call) else None
    if not isinstance(method, ast.Attribute) or not isinstance(method.value, ast.Name):
        return "", ""
    if not method.attr.endswith("_") or method.attr.endswith("__"):
        return "", ""
    name, rest = method.value.id, source.segment(node)[len(source.segment(method)) :]
    return name, f"{name}.{method.attr.removesuffix('_')}{rest}"


def _early(source: Source, node: ast.If, indent: str) -> Iterator[Proposal]:
    """Propose to choose between an early return and the last one of the function at its end."""
    function = source.function(node)
    if function is None or node not in function.body:
        return
    rest = function.body[function.body.index(node) :]
    guards, last = [one for one in rest if isinstance(one, ast.If) and _returns_early(one)], rest[-1]
    if node not in guards or not isinstance(last, ast.Return) or last.value is None:
        return
    others = [one for one in rest[:-1] if one not in guards]
    if any(isinstance(inner, (ast.Return, ast.Yield)) for one in others for inner in ast.walk(one)):
        return
    yield _together(source, guards, last, indent) if not others else _at_the_end(source, guards, last, indent)


def _returns_early(node: ast.If) -> bool:
    _, body = asides(node.body)
    return not node.orelse and len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None


def _value(guard: ast.If) -> ast.expr:
    """Return the value that a guard returns."""
    last = guard.body[-1]
    assert isinstance(last, ast.Return)
    assert last.value is not None
    return last.value


def _together(source: Source, guards: Sequence[ast.If], last: ast.Return, indent: str) -> Proposal:
    """Return one statement for all returns, which follow each other."""
    assert last.value is not None
    value = _of(source, last.value)
    for guard in reversed(guards):
        value = f"{torch_of(source)}.where({condition(source, guard.test)}, {_of(source, _value(guard))}, {value})"
    start, end = source.span(guards[0])[0], source.span(last)[1]
    logged = [line for guard in guards for line in _aside(source, guard)]
    lines = [*source.comments(start, end), *logged, f"return {value}"]
    text = "choose between the returned values with torch.where"
    return proposal(source, guards[0], [(start, end, f"\n{indent}".join(lines))], text, BOTH)


def _at_the_end(source: Source, guards: Sequence[ast.If], last: ast.Return, indent: str) -> Proposal:
    """Return the statements that remember the early values, and choose at the end."""
    assert last.value is not None
    value, edits = _of(source, last.value), []
    names = [_names(source, number) for number in range(len(guards))]
    for guard, (test, early) in zip(guards, names, strict=True):
        start, end = source.span(guard)
        one = source.segment(_value(guard))
        lines = [
            *source.comments(start, end),
            *_aside(source, guard),
            f"{test} = {condition(source, guard.test)}",
            f"{early} = {one}" if "\n" not in one else f"{early} = ({one})",
        ]
        edits.append((start, end, f"\n{indent}".join(lines)))
    for test, early in reversed(names):
        value = f"{torch_of(source)}.where({test}, {early}, {value})"
    edits.append((*source.span(last), f"return {value}"))
    return proposal(source, guards[0], edits, "choose between the returned values with torch.where at the end", BOTH)


def _names(source: Source, number: int) -> tuple[str, str]:
    end = f"_{number + 1}" if number else ""
    return source.unused(f"returns_early{end}"), source.unused(f"early_value{end}")
