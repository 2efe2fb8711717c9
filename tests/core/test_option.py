"""Settings: dataclass fields with metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch

from exporter.core import json_schema
from exporter.core.errors import UsageError
from exporter.core.option import command_line, option, pick, settings
from exporter.core.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class Oven:
    """An example."""

    heat: float = option(180.0, "Degrees.", minimum=30, maximum=250)
    minutes: int | None = option(None, "How long.", above=0)
    fan: bool = option(False, "Whether the fan runs.", flag="--fan/--no-fan")
    mode: Literal["", "grill", "bake"] = option("", "What it does.")
    trays: tuple[str, ...] = option((), "What is in it.", flag="--tray", key="tray")
    owner: str = "me"


FOUND = {setting.name: setting for setting in settings(Oven)}


def test_plain_fields_are_not_settings() -> None:
    assert list(FOUND) == ["heat", "minutes", "fan", "mode", "trays"]


@pytest.mark.parametrize(
    ("name", "flag", "key", "kind", "multiple"),
    [
        ("heat", "--heat", "heat", float, False),
        ("minutes", "--minutes", "minutes", int, False),
        ("fan", "--fan/--no-fan", "fan", bool, False),
        ("mode", "--mode", "mode", str, False),
        ("trays", "--tray", "tray", str, True),
    ],
)
def test_the_metadata_of_a_setting(name: str, flag: str, key: str, kind: type, multiple: bool) -> None:
    found = FOUND[name]
    assert (found.flag, found.key, found.kind, found.multiple) == (flag, key, kind, multiple)


@pytest.mark.parametrize(
    ("name", "value", "said", "remedy"),
    [
        ("heat", 20.0, "heat is 20.0", "30 to 250"),
        ("heat", math.nan, "not a finite number", "30 to 250"),
        ("heat", math.inf, "not a finite number", "30 to 250"),
        ("heat", True, "heat is True, not a number", "a number"),
        ("heat", None, "heat is None", "a number"),
        ("minutes", 0, "minutes is 0", "more than 0"),
        ("minutes", 1.5, "minutes is 1.5, not an integer", "an integer"),
        ("fan", 1, "fan is 1, not true or false", "true or false"),
        ("mode", "fry", "mode is 'fry'", "grill, bake"),
        ("trays", "one", "trays is 'one', not a list", "[text, …]"),
        ("trays", (1,), "trays is 1, not text", "text"),
    ],
)
def test_an_invalid_value(name: str, value: Any, said: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=said.replace("[", r"\[")) as caught:
        FOUND[name].check(value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [("heat", 30), ("minutes", None), ("minutes", 1), ("mode", "bake"), ("mode", ""), ("trays", ["a"])],
)
def test_a_valid_value(name: str, value: Any) -> None:
    FOUND[name].check(value)


def test_a_seed_that_torch_does_not_take() -> None:
    for seed in (-(1 << 63), (1 << 64) - 1):
        torch.manual_seed(seed)
        ModelSettings(seed=seed).require_valid()
    with pytest.raises(UsageError, match="seed is 18446744073709551616") as caught:
        ModelSettings(seed=1 << 64).require_valid()
    assert caught.value.remedy == "give -9223372036854775808 to 18446744073709551615"


def test_the_command_line_omits_defaults() -> None:
    assert command_line(Oven()) == ""
    given = Oven(heat=200.5, minutes=7, fan=True, trays=("a b", "c"))
    assert command_line(given) == "--heat 200.5 --minutes 7 --fan --tray 'a b' --tray c"
    assert command_line(given, "heat", "trays") == "--minutes 7 --fan"


def test_pick_fields_from_several_records() -> None:
    assert pick(Oven, Oven(heat=99.0), Oven(heat=50.0, owner="you"), fan=True) == Oven(heat=99.0, fan=True)


def test_the_schema_of_each_setting() -> None:
    found = {name: json_schema.of_setting(setting) for name, setting in FOUND.items()}
    assert found == {
        "heat": {"type": "number", "minimum": 30, "maximum": 250, "description": "Degrees."},
        "minutes": {"type": "integer", "exclusiveMinimum": 0, "description": "How long."},
        "fan": {"type": "boolean", "description": "Whether the fan runs."},
        "mode": {"enum": ["grill", "bake"], "description": "What it does."},
        "trays": {"type": "array", "items": {"type": "string", "minLength": 1}, "description": "What is in it."},
    }
