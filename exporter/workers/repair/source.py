"""The text of a Python file with its syntax tree: find the node at a position, and change the text around it."""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from exporter.workers.repair.records import Frame

BOM = b"\xef\xbb\xbf"
Edit = tuple[int, int, str]  # the bytes from one offset to another, and their replacement
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
_SCOPES = (*FUNCTIONS, ast.ClassDef)


class Source:
    """One file. Offsets are in bytes, because the columns of `ast` are. Nodes inside f-strings have no positions."""

    def __init__(self, file: str, data: bytes) -> None:
        """Parse the file. Raises ValueError or SyntaxError if it is not Python in UTF-8."""
        self.file, self.data = file, data
        self.text = data.removeprefix(BOM).decode("utf-8")
        if "\r" in self.text.replace("\r\n", ""):
            raise ValueError("the file has old line endings")
        self.newline = "\r\n" if "\r\n" in self.text else "\n"
        self.tree = ast.parse(self.text)
        self._starts = [0]
        for line in self.text.encode().split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @classmethod
    def read(cls, file: str) -> Source:
        """Read a file."""
        return cls(file, Path(file).read_bytes())

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Map every node to its parent, except those inside f-strings."""
        found: dict[ast.AST, ast.AST] = {}
        for node in self.walk():
            found |= dict.fromkeys(ast.iter_child_nodes(node), node)
        return found

    def walk(self, start: ast.AST | None = None) -> Iterator[ast.AST]:
        """Yield every node below `start` that has a reliable position, outer ones first."""
        pending: list[ast.AST] = [start or self.tree]
        while pending:
            node = pending.pop(0)
            yield node
            if not isinstance(node, ast.JoinedStr):
                pending += ast.iter_child_nodes(node)

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a line, from 1, and a column."""
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node starts and ends."""
        assert isinstance(node, (ast.expr, ast.stmt))
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )

    def slice(self, start: int, end: int) -> str:
        """Return the text between two offsets."""
        return self.text.encode()[start:end].decode()

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node, without parentheses around it."""
        return self.slice(*self.span(node))

    def atom(self, node: ast.AST) -> str:
        """Return the text of an expression in a form that a method can be called on."""
        return self.segment(node) if isinstance(node, ATOMS) else f"({self.segment(node)})"

    def argument(self, node: ast.AST) -> str:
        """Return the text of an expression in a form that can be an argument among others."""
        text = self.segment(node)
        return f"({text})" if isinstance(node, (ast.Tuple, ast.NamedExpr, ast.Yield)) else text

    def at(self, frame: Frame) -> list[ast.AST]:
        """Return the expressions and statements that contain a position, the innermost first."""
        start, end = self.offset(frame.line, frame.column), self.offset(frame.end_line, frame.end_column)
        found: list[ast.AST] = []
        for node in self.walk():
            if isinstance(node, (ast.expr, ast.stmt)):
                first, last = self.span(node)
                if first <= start and end <= last:
                    found.append(node)
        return found[::-1]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parent of a node, the parent's parent, and so on."""
        while (above := self.parents.get(node)) is not None:
            yield above
            node = above

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that a node is in, or is."""
        return next((one for one in (node, *self.ancestors(node)) if isinstance(one, ast.stmt)), None)

    def function(self, node: ast.AST) -> ast.FunctionDef | None:
        """Return the innermost function around a node, unless that is a lambda or asynchronous."""
        found = next((one for one in self.ancestors(node) if isinstance(one, _SCOPES)), None)
        return found if isinstance(found, ast.FunctionDef) else None

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the list of statements that a statement is in."""
        above = self.parents[statement]
        lists = [value for _, value in ast.iter_fields(above) if isinstance(value, list) and statement in value]
        return lists[0] if lists else [statement]

    def indent(self, statement: ast.stmt) -> str | None:
        """Return the spaces before a statement; None if it does not start its line."""
        start = self.span(statement)[0]
        before = self.slice(self._starts[statement.lineno - 1], start)
        return None if before.strip() else before

    def alone(self, statement: ast.stmt) -> bool:
        """Return whether a statement shares its lines with no other."""
        rest = self.slice(self.span(statement)[1], self.line_end(statement.end_lineno or 0)).strip()
        return self.indent(statement) is not None and (not rest or rest.startswith("#"))

    def line_start(self, line: int) -> int:
        """Return the offset of the start of a line, from 1."""
        return self._starts[line - 1]

    def line_end(self, line: int) -> int:
        """Return the offset of the end of a line, before its line break."""
        return self._starts[line] - 1

    def comments(self, start: int, end: int) -> list[str]:
        """Return the comments between two offsets."""
        found = []
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                at = self._starts[line - 1] + len(token.line[:column].encode())
                if start <= at < end:
                    found.append(token.string)
        return found

    def has_long_strings(self, node: ast.AST) -> bool:
        """Return whether a string in a node spans lines, so that its text cannot be indented."""
        strings = (one for one in self.walk(node) if isinstance(one, (ast.Constant, ast.JoinedStr)))
        return any(one.lineno != one.end_lineno for one in strings)

    def replaced(self, edits: Iterable[Edit]) -> bytes:
        """Return the file with the edits applied; they must not overlap."""
        data = self.text.encode()
        for start, end, new in sorted(edits, reverse=True):
            data = data[:start] + new.replace("\r\n", "\n").replace("\n", self.newline).encode() + data[end:]
        return (BOM if self.data.startswith(BOM) else b"") + data

    @cached_property
    def torch(self) -> str:
        """Return the name under which the file imports torch; "" if it does not."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == "torch" or (alias.name.startswith("torch.") and not alias.asname):
                        return alias.asname or "torch"
        return ""

    def names(self) -> set[str]:
        """Return every name that the file uses."""
        found = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        return found | {node.arg for node in ast.walk(self.tree) if isinstance(node, ast.arg)}

    def unused(self, wanted: str) -> str:
        """Return the name, with a number if the file already uses it."""
        taken, name, number = self.names(), wanted, 2
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        return name


def called(node: ast.AST) -> str:
    """Return the dotted name that a call calls: `torch.equal`, `self.items.append`, or `.item` for other values."""
    return dotted(node.func) if isinstance(node, ast.Call) else ""


def dotted(node: ast.AST) -> str:
    """Return a name with its attributes, beginning with a dot if the value is not a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def unified(name: str, old: bytes, new: bytes) -> str:
    """Return the unified diff between two versions of a file, in a form that `patch` and `git apply` accept."""
    lines = difflib.unified_diff(_lines(old), _lines(new), name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(data: bytes) -> Sequence[str]:
    lines = data.decode().split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
