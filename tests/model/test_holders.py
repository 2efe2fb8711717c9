"""Replacing functions wherever modules hold them."""

import contextlib
import sys
from types import ModuleType

import pytest

from exporter.model import holders


def usual() -> int:
    return 1


def other() -> int:
    return 2


def test_every_module_gets_the_other_function_and_its_own_back(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("held_elsewhere")
    vars(module).update(renamed=usual, another=other)
    monkeypatch.setitem(sys.modules, "held_elsewhere", module)
    with holders.replaced(holders.of(usual, other)):
        assert vars(module)["renamed"] is other
        assert usual() == 2
        vars(module)["since"] = 3
        loaded = ModuleType("loaded_meanwhile")
        vars(loaded)["usual"] = usual
        monkeypatch.setitem(sys.modules, "loaded_meanwhile", loaded)
    assert vars(module)["renamed"] is usual
    assert vars(module)["since"] == 3
    assert vars(loaded)["usual"] is usual
    assert usual() == 1


def test_a_new_name_is_removed_even_after_an_error() -> None:
    names = {"one": 1}
    with contextlib.suppress(KeyError), holders.named(names, {"one": 2, "two": 2}):
        raise KeyError
    assert names == {"one": 1}
