"""Tests of finding the checks in a model's code."""

from pathlib import Path

import pytest

from exporter.core import checks_in_code

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
        ("if x: raise E", RAISES, False),
        ("if not x:\n    text = f'{x}'\n    raise E(text)", RAISES, True),
        ("if x:\n    y = 1\nelse:\n    raise E", RAISES, True),
        ("if x: raise E\nelse: y = 1", RAISES, False),
        ("if x: warnings.warn('x')", WARNS, False),
        ("if x:\n    print(x)\n    logger.warning(x)", WARNS, False),
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


@pytest.mark.parametrize("code", ["if x: y = 1", RAISES_LATER, "while x: raise E", "y = x", "if x: f()"])
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
