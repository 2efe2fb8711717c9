"""Lines of a model's source that write through `.data`, which no trace or graph records. Never imports torch."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterable, Iterator

from exporter.core import source_lines

SAID = ".data is written, which no trace or graph records"


def writes(classes: Iterable[type]) -> list[str]:
    """Return `file:line` of each write, in the order of the classes; libraries and unreadable sources are skipped."""
    found: dict[str, None] = {}
    for one in classes:
        try:
            file = inspect.getsourcefile(one) or ""
            tree = ast.parse("".join(linecache.getlines(file)))
        except (TypeError, OSError, SyntaxError, ValueError, RecursionError):
            continue
        if not source_lines.of_library(f"{file}:1"):
            bodies = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and _is_of(n, one, file))
            found |= dict.fromkeys(source_lines.shown(file, line) for body in bodies for line in _lines(body))
    return list(found)


def _is_of(body: ast.ClassDef, one: type, file: str) -> bool:
    """Return whether the source is of this very class, because a file may define several of one name."""
    codes = [inspect.unwrap(f).__code__ for f in vars(one).values() if inspect.isfunction(f)]
    firsts = [code.co_firstlineno for code in codes if code.co_filename == file]
    within = [body.lineno <= first <= (body.end_lineno or 0) for first in firsts]
    return body.name == one.__name__ and (any(within) or not firsts)


def _lines(body: ast.ClassDef) -> Iterator[int]:
    methods = (n for n in body.body if isinstance(n, ast.FunctionDef) and n.name != "__init__")
    for node in (inner for method in methods for inner in ast.walk(method)):
        if isinstance(node, ast.Assign):
            written = node.targets
        elif isinstance(node, ast.AugAssign):
            written = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _in_place(node.func.attr):
            written = [node.func.value]
        else:
            continue
        if any(isinstance(n, ast.Attribute) and n.attr == "data" for target in written for n in ast.walk(target)):
            yield node.lineno


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")
