"""Check docs/architecture.md against the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from support.commands import ROOT

PACKAGE = ROOT / "exporter"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = {file.relative_to(PACKAGE).with_suffix("").as_posix(): file for file in PACKAGE.rglob("*.py")}
MOST_PARAMETERS = 6
LONG = 300  # lines


def rows(heading: str) -> list[tuple[str, str]]:
    """Return the last table below a heading of the page, without the table's header."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+) \| (.+) \|$", section, re.MULTILINE)
    return found[1:]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def charter(module: str, file: Path) -> bool:
    """Return whether the file is a package's `__init__` that contains only a docstring."""
    return module.endswith("__init__") and len(ast.parse(file.read_text(encoding="utf-8")).body) == 1


def test_every_module_has_its_own_tests_or_a_row() -> None:
    patterns = [pattern for modules, _ in rows("Tests") for pattern in named(modules)]
    own = {
        module
        for module in MODULES
        if (ROOT / "tests" / module.partition("/")[0] / f"test_{Path(module).name.lstrip('_')}.py").is_file()
    }
    left = [
        module
        for module, file in MODULES.items()
        if module not in own and not charter(module, file) and not any(fnmatchcase(module, one) for one in patterns)
    ]
    assert left == []


@pytest.mark.parametrize(("modules", "test"), rows("Tests"))
def test_rows_name_existing_tests_and_modules(modules: str, test: str) -> None:
    assert (ROOT / named(test)[0]).is_file()
    for pattern in named(modules):
        assert any(fnmatchcase(module, pattern) for module in MODULES), pattern


def test_the_page_lists_every_module_that_parses_text() -> None:
    """A module that parses text needs a row that names the source of the text."""
    listed = {module.removesuffix(".py") for cell, _ in rows("What is parsed") for module in named(cell)}
    parsing = {
        module
        for module, file in MODULES.items()
        if re.search(r"^import re$", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert parsing == listed


def public_functions() -> Iterator[tuple[str, int]]:
    for module, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
                own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                yield f"{module}:{node.name}", len([arg for arg in own if arg.arg not in ("self", "cls")])


def test_functions_take_few_parameters() -> None:
    many = [name for name, count in public_functions() if count > MOST_PARAMETERS]
    print(f"{len(many)} public functions with more than {MOST_PARAMETERS} parameters")
    assert many == []


def test_long_modules_explain_why() -> None:
    for module, file in MODULES.items():
        text = file.read_text(encoding="utf-8")
        if len(text.splitlines()) > LONG:
            assert "This file is long because" in (ast.get_docstring(ast.parse(text)) or ""), module
