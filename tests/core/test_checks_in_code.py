"""Tests of finding the checks in a model's code."""

from __future__ import annotations

import contextlib
import sys
import textwrap
import zlib
from pathlib import Path
from typing import Any

import pytest

from exporter.core import checks_in_code
from exporter.core.checks_in_code import Check

ASSERT, RAISES, WARNS = "an assert", "a check that raises", "a check that warns"


@pytest.mark.parametrize(
    ("code", "kind", "passing"),
    [
        ("assert x.any()", ASSERT, True),
        ("assert not x.any(), 'message'", ASSERT, False),
        ("assert x.any() and y or z", ASSERT, True),
        ("assert not (x or y)", ASSERT, False),
        ("assert not not x", ASSERT, True),
        ("assert not x or y", ASSERT, None),
        ("assert (x if y else z)", ASSERT, None),
        ("assert (y := x) > 0", ASSERT, None),
        ("assert f(not x)", ASSERT, None),
        ("assert all(keep(a) for a in x if a > 0)", ASSERT, None),
        ("if bool(x) is False: raise E", RAISES, None),
        ("if bool(x) != bool(y): raise E", RAISES, None),
        ("if x.any() == True: raise E", RAISES, None),
        ("assert x.max() not in (1, 2)", ASSERT, None),
        ("assert (x, y) != (1, 2)", ASSERT, None),
        ("if x: raise E", RAISES, False),
        ("if not x:\n    text = f'{x}'\n    raise E(text)", RAISES, True),
        ("if x:\n    y = 1\nelse:\n    raise E", RAISES, True),
        ("if x: raise E\nelse: y = 1", RAISES, False),
        ("if x: warnings.warn(f'{x.max().item():.2f}')", WARNS, False),
        ("if x:\n    print(x)\n    self._logger.warning('x is %s', x.shape)", WARNS, False),
    ],
)
def test_checks(tmp_path: Path, code: str, kind: str, passing: bool | None) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"a = 1\n{code}\n")
    found = checks_in_code.at(str(file), 2)
    assert found is not None
    assert (found.kind, found.passing) == (kind, passing)
    assert checks_in_code.at(str(file), 1) is None


RAISES_LATER = "if x:\n    y = 1\n    raise E if y else F\n    y = 2"


@pytest.mark.parametrize(
    "code",
    [
        "if x: y = 1",
        RAISES_LATER,
        "while x: raise E",
        "y = x",
        "if x: f()",
        "if x: self.error(x)",
        "if x: print(stack.pop())",
        "if x: print(y := 2)",
        "if x: raise StopIteration",
        "if x: raise IndexError(y)",
        "if x: raise",
    ],
)
def test_what_is_not_a_check(tmp_path: Path, code: str) -> None:
    file = tmp_path / "model.py"
    file.write_text(code)
    assert checks_in_code.at(str(file), 1) is None


def test_a_condition_on_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("if (\n    x\n    and y\n):\n    raise E\n")
    assert [checks_in_code.at(str(file), line) is not None for line in (1, 2, 3, 5)] == [False, True, True, False]


def test_files_that_cannot_be_parsed(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("def (")
    assert checks_in_code.at(str(file), 1) is None
    assert checks_in_code.at("<string>", 1) is None


class Asked:
    """A value that records the check that asks for its truth."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.checks: list[Check | None] = []

    def __bool__(self) -> bool:
        frame: Any = sys._getframe(1)
        frames = []
        while frame is not None:
            frames += [frame] if frame.f_code.co_filename == str(self.file) else []
            frame = frame.f_back
        self.checks.append(checks_in_code.asked(frames))
        return True


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("assert x and x, 'text'", [True, True]),
        ("if x and not x:\n    raise ValueError", [None, None]),
        ("if not x:\n    raise ValueError", [True]),
        ("y = 1 if x else 2; assert x", ["no check", True]),
        ("if x: assert x", ["no check", True]),
        ("assert bool(x)", [True]),
        ("assert len([1 for _ in 'ab' if x]) == 2", ["no check", "no check"]),
        ("try:\n    assert x\nexcept AssertionError:\n    y = 1", ["no check"]),
        ("try:\n    assert x\nfinally:\n    y = 1", [True]),
        ("def check():\n    assert x\ntry:\n    check()\nexcept AssertionError:\n    y = 1", ["no check"]),
        ("with contextlib.suppress(ValueError):\n    assert x", ["no check"]),
        ("with contextlib.nullcontext():\n    assert x", [True]),
        ("try:\n    assert x\nfinally:\n    return", ["no check"]),
    ],
)
def test_the_check_that_asks(tmp_path: Path, code: str, expected: list[Any]) -> None:
    """Checks on lines with other conditions, and checks whose exception is caught, which choose what is computed."""
    file = tmp_path / f"model_{zlib.crc32(code.encode())}.py"  # what was read of a file is remembered by its path
    body = textwrap.indent(code, "    ")
    file.write_text(f"def run(x):\n{body}\n")
    asked = Asked(file)
    names: dict[str, Any] = {"contextlib": contextlib}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with contextlib.suppress(ValueError):
        names["run"](asked)
    assert ["no check" if one is None else one.passing for one in asked.checks] == expected
