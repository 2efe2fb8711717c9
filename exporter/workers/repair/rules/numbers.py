"""A Python number that is read from a tensor: keep it as a tensor, or as a symbol that torch.export understands."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from exporter.workers.repair.rules._rule import Failure, Proposal, proposal, torch_of
from exporter.workers.repair.source import Source, called

SAME = {"sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "floor",
        "ceil", "erf", "isnan", "isinf", "isfinite", "atan", "asin", "acos", "atan2", "trunc", "hypot"}  # fmt: skip
SYMBOLIC = {"max": "sym_max", "min": "sym_min"}


def propose(failure: Failure) -> Iterator[Proposal]:
    """Propose other ways to compute with the number."""
    for node in failure.nodes:
        if isinstance(node, ast.Call):
            tested = failure.tested is not None and called(node) == "bool"
            yield from () if tested else _call(failure.source, node)
        if isinstance(node, ast.stmt):
            break
    yield from _assigned(failure)


def _call(source: Source, node: ast.Call) -> Iterator[Proposal]:
    name, torch = called(node), torch_of(source)
    start, end = source.span(node)
    module, _, function = name.rpartition(".")
    if name in ("float", "bool") and len(node.args) == 1:
        yield proposal(
            source, node, [(start, end, source.atom(node.args[0]))], f"leave out {name}(), and keep a tensor"
        )
    if name in ("float", "int") and len(node.args) == 1:
        yield proposal(source, node, [(start, end, _item(source, node.args[0]))], f"write .item() instead of {name}()")
    if name == "int" and len(node.args) == 1:
        text = f"{source.atom(node.args[0])}.long().item()"
        yield proposal(source, node, [(start, end, text)], "write .long().item() instead of int()")
    if module == "math" and function in SAME:
        first = source.span(node.func)
        yield proposal(source, node, [(*first, f"{torch}.{function}")], f"write torch.{function} instead of {name}")
    if name in SYMBOLIC and len(node.args) == 2:
        yield from _bounded(source, node, name)
        first = source.span(node.func)
        word = SYMBOLIC[name]
        yield proposal(source, node, [(*first, f"{torch}.{word}")], f"write torch.{word} instead of {name}")
    if name == "copy.deepcopy" and len(node.args) == 1:
        yield proposal(source, node, [(start, end, f"{source.atom(node.args[0])}.clone()")], "write .clone()")


def _bounded(source: Source, node: ast.Call, name: str) -> Iterator[Proposal]:
    """Propose to bound a tensor by a number, or to compare two tensors, instead of min() and max()."""
    torch = torch_of(source)
    numbers = [one for one in node.args if isinstance(one, ast.Constant)]
    others = [one for one in node.args if one not in numbers]
    if len(numbers) == 1:
        bound = "min" if name == "max" else "max"
        text = f"{torch}.clamp({source.argument(others[0])}, {bound}={source.segment(numbers[0])})"
        yield proposal(source, node, [(*source.span(node), text)], f"write torch.clamp instead of {name}()")
    word = f"{torch}.{name}imum"
    yield proposal(source, node, [(*source.span(node.func), word)], f"write {word} instead of {name}()")


def _item(source: Source, node: ast.expr) -> str:
    text = source.atom(node)
    return text if text.endswith(".item()") else f"{text}.item()"


def _assigned(failure: Failure) -> Iterator[Proposal]:
    """Propose to keep tensors in the names that the failing expression reads, where .item() made them numbers."""
    if not failure.nodes:
        return
    source, innermost = failure.source, failure.nodes[0]
    function = source.function(innermost)
    used = {one.id for one in ast.walk(innermost) if isinstance(one, ast.Name)}
    for node in ast.walk(function) if function else ():
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Name) or target.id not in used or not isinstance(value, ast.Call):
            continue
        inner = value.args[0] if called(value) in ("float", "bool", "int") and len(value.args) == 1 else value
        stripped = called(inner).rpartition(".")[2] == "item" and isinstance(inner, ast.Call)
        if stripped and isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            text = source.segment(inner.func.value)
        elif inner is not value:
            text = source.segment(inner)
        else:
            continue
        if called(value) == "int":
            text = f"{source.atom(inner)}.long()" if not stripped else text
        if "\n" in text:
            text = f"({text})"
        yield proposal(source, node, [(*source.span(value), text)], f"keep {target.id} as a tensor")
    if function:
        yield from _all_items(source, function)


def _rounds(node: ast.AST) -> bool:
    """Return whether a node is `int(round(x))`."""
    return (
        isinstance(node, ast.Call) and called(node) == "int" and len(node.args) == 1 and called(node.args[0]) == "round"
    )


def _all_items(source: Source, function: ast.FunctionDef) -> Iterator[Proposal]:
    """Propose to leave out every .item() of a function."""
    edits = []
    for node in source.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
            edits.append((source.span(node.func.value)[1], source.span(node)[1], ""))
        if _rounds(node):
            assert isinstance(node, ast.Call)
            (inner,) = node.args
            edits += [
                (*source.span(node)[:1], source.span(inner)[0], ""),
                (source.span(inner)[1], source.span(node)[1], ""),
            ]
            assert isinstance(inner, ast.Call)
            edits.append((*source.span(inner.func), f"{torch_of(source)}.round"))
    if len(edits) > 1:
        yield proposal(source, function, edits, f"keep tensors in {function.name}() instead of numbers")
