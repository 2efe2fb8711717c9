"""The sizes of a recipe, read from the text of its code."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.core.size_range import Range
from exporter.model import recipes, written_sizes

PLAIN = """
class net:
    sizes = {"batch": (1, 8), "length": (16, 64, 16)}

    def load(weights): ...

    @staticmethod
    def inputs(batch=1, *, length: int = 32): ...
"""


@pytest.mark.parametrize(
    "changed",
    [
        ("@staticmethod\n    def inputs(", "def inputs(self, "),
        ("@staticmethod\n    def inputs(", "@classmethod\n    def inputs(cls, "),
        ('sizes = {"batch"', 'sizes: dict = {"batch"'),
        ("class net", "class other:\n    sizes = {}\n    def inputs(): ...\n\nclass net"),
        ("def load(weights): ...", "def load(weights):\n        inputs = sizes = 3\n        return inputs + sizes"),
    ],
)
def test_literal_sizes_are_read(tmp_path: Path, changed: tuple[str, str]) -> None:
    assert changed[0] in PLAIN
    (tmp_path / "own.py").write_text(PLAIN.replace(*changed))
    base, symbols = written_sizes.read(recipes.find(f"{tmp_path}/own.py:net")) or ({}, {})
    assert (base, symbols) == ({"batch": 1, "length": 32}, {"batch": Range(1, 8), "length": Range(16, 64, (), 16)})


@pytest.mark.parametrize(
    "changed",
    [
        ("class net", "class net(Base)"),
        ("class net", "@wrapped\nclass net"),
        ("class net", "net = 3\nclass net"),
        ("class net", "if new:\n  class net"),
        ("batch=1", "batch=ONE"),
        ("batch=1", "batch"),
        ("(1, 8)", "(1, most)"),
        ("(1, 8)", "(8, 1)"),
        ("@staticmethod", "@cached"),
        ("@staticmethod", "sizes['late'] = 3\n    @staticmethod"),
        ("@staticmethod", "if new:\n        sizes = {}\n    @staticmethod"),
        ("@staticmethod", "from other import inputs\n    @staticmethod"),
        ("length: int = 32): ...", "length: int = 32): ...\n\nnet.sizes['late'] = 3"),
        ("length: int = 32): ...", "length: int = 32): ...\n\nsetattr(net, 'si' + 'zes', {})"),
        ("length: int = 32): ...", "length: int = 32): ...\n\ndel net"),
        ("length: int = 32): ...", "length: int = 32): ("),
    ],
)
def test_sizes_in_doubt_are_not_read(tmp_path: Path, changed: tuple[str, str]) -> None:
    assert changed[0] in PLAIN
    (tmp_path / "own.py").write_text(PLAIN.replace(*changed, 1))
    assert written_sizes.read(recipes.find(f"{tmp_path}/own.py:net")) is None


def test_other_sources_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "inputs.pt").touch()
    assert written_sizes.read(recipes.find("hf:gpt2")) is None
    assert written_sizes.read(recipes.find("bert", f"{tmp_path}/inputs.pt")) is None


def test_a_built_in_recipe_is_read() -> None:
    assert written_sizes.read(recipes.find("bert")) == (
        {"batch": 1, "sequence": 14},
        {"batch": Range(1, 64), "sequence": Range(1, 512)},
    )
    assert written_sizes.read(recipes.find("resnet18")) == ({"batch": 1}, {"batch": Range(1, 32)})
