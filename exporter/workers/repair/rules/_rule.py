"""What every rule receives and yields."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from exporter.workers.repair.records import Frame, Obstacle
from exporter.workers.repair.source import Edit, Source, called, dotted


@dataclass(frozen=True)
class Proposal:
    """A changed file. `text` says what was done, in the imperative; `note` what the user should know about it."""

    file: str
    data: bytes
    text: str
    place: str
    note: str = ""


@dataclass
class Failure:
    """The obstacle, with the source of the files that may be changed, as far as they have been changed."""

    obstacle: Obstacle
    sources: dict[str, Source] = field(default_factory=dict)

    @cached_property
    def frame(self) -> Frame | None:
        """Return the innermost frame, if its file may be changed."""
        frames = self.obstacle.frames
        return frames[-1] if frames and frames[-1].file in self.sources else None

    @cached_property
    def source(self) -> Source:
        """Return the source of the innermost frame."""
        assert self.frame is not None
        return self.sources[self.frame.file]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return the nodes around the failing expression, the innermost first; none without a frame."""
        return self.source.at(self.frame) if self.frame else []

    @cached_property
    def tested(self) -> ast.If | ast.IfExp | ast.Assert | ast.While | None:
        """Return the statement or expression whose condition fails; Python gives some of them as a whole."""
        whole = (ast.If, ast.IfExp, ast.Assert, ast.While)
        if self.nodes and isinstance(self.nodes[0], whole):
            return self.nodes[0]
        for node in self.nodes:
            above = self.source.parents.get(node)
            if isinstance(above, whole):
                return above if above.test is node else None
        return None

    def around(self) -> Iterator[tuple[Source, list[ast.AST]]]:
        """Yield the source and the nodes of each frame, the innermost first."""
        for frame in reversed(self.obstacle.frames):
            if frame.file in self.sources:
                yield self.sources[frame.file], self.sources[frame.file].at(frame)


Rule = Callable[[Failure], Iterator[Proposal]]


def proposal(source: Source, node: ast.AST, edits: Sequence[Edit], text: str, note: str = "") -> Proposal:
    """Return a proposal that edits a file at a node, and imports torch if the file does not."""
    if not source.torch:
        edits = [*edits, _import_torch(source)]
    return Proposal(source.file, source.replaced(edits), text, f"{source.file}:{getattr(node, 'lineno', 1)}", note)


def _import_torch(source: Source) -> Edit:
    """Return the edit that imports torch after the file's docstring and its imports from __future__."""
    line = 0
    for statement in source.tree.body:
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not text and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            break
        line = statement.end_lineno or 0
    at = source.line_start(line + 1)
    return at, at, "import torch\n"


def torch_of(source: Source) -> str:
    """Return the name to use for torch."""
    return source.torch or "torch"


def condition(source: Source, node: ast.expr) -> str:
    """Return a Python condition as an expression that makes a tensor of booleans."""
    torch = torch_of(source)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"{torch}.logical_not({condition(source, node.operand)})"
    if isinstance(node, ast.BoolOp):
        word = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        first, *others = (condition(source, value) for value in node.values)
        for other in others:
            first = f"{torch}.{word}({first}, {other})"
        return first
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        return _chain(source, node)
    return _called_condition(source, node) if isinstance(node, ast.Call) else source.segment(node)


def split(source: Source, node: ast.expr) -> tuple[str, str]:
    """Return the part of `x is not None and x.any()` that Python decides, or "", and the part that a tensor decides."""
    if not isinstance(node, ast.BoolOp) or not isinstance(node.op, ast.And):
        return "", condition(source, node)
    count = next((number for number, value in enumerate(node.values) if not _plain(value)), 0)
    if not count:
        return "", condition(source, node)
    rest = node.values[count:]
    tensors = condition(source, rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest))
    return " and ".join(source.argument(value) for value in node.values[:count]), tensors


def _plain(node: ast.expr) -> bool:
    """Return whether a condition is one of Python, not of a tensor, as far as its text tells."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _plain(node.operand)
    if isinstance(node, ast.Compare):
        return all(isinstance(one, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for one in node.ops)
    if isinstance(node, ast.Call):
        return called(node) in ("isinstance", "hasattr", "callable", "len")
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Attribute) and dotted(node).startswith("self."))


NUMBERS = {
    "sum",
    "mean",
    "max",
    "min",
    "amax",
    "amin",
    "norm",
    "prod",
    "argmax",
    "argmin",
    "count_nonzero",
    "std",
    "var",
}


def _called_condition(source: Source, node: ast.Call) -> str:
    name, last = called(node), called(node).rpartition(".")[2]
    if name in ("bool", f"{torch_of(source)}.is_nonzero") and len(node.args) == 1:
        return condition(source, node.args[0])
    if last == "item" and isinstance(node.func, ast.Attribute) and not node.args:
        return condition(source, node.func.value)
    if name == f"{torch_of(source)}.equal" and len(node.args) == 2:
        return f"({source.atom(node.args[0])} == {source.atom(node.args[1])}).all()"
    if name == f"{torch_of(source)}.allclose":
        return f"{torch_of(source)}.isclose{source.segment(node)[len(source.segment(node.func)) :]}.all()"
    return f"{source.segment(node)} != 0" if last in NUMBERS else source.segment(node)


def _chain(source: Source, node: ast.Compare) -> str:
    """Return `0 < x < 1` as a conjunction."""
    values = [node.left, *node.comparators]
    pairs = []
    for left, operator, right in zip(values, node.ops, values[1:], strict=False):
        between = source.slice(source.span(left)[1], source.span(right)[0])
        del operator
        pairs.append(f"{source.segment(left)}{between}{source.segment(right)}")
    first, *others = pairs
    for other in others:
        first = f"{torch_of(source)}.logical_and({first}, {other})"
    return first
