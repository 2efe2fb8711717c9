"""Records and their JSON: the round trip, and hostile text."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from support.manifests import MANIFEST, edited, variant

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import from_json, to_json
from exporter.core.records import Manifest
from exporter.core.size_range import Range


def test_round_trip() -> None:
    assert from_json(Manifest, to_json(MANIFEST)) == MANIFEST


def test_round_trip_of_a_contract() -> None:
    contract = Contract(
        "m", (TensorSpec("x", "int64", ("batch", 3, None)),), (TensorSpec("y", "float32", ()),), {"batch": Range(1, 9)}
    )
    assert from_json(Contract, to_json(contract, indent=None)) == contract


def test_operators_are_optional_in_a_contract() -> None:
    contract = Contract("m", (TensorSpec("x", "int64", ()),), (), {}, ops=("torchvision",))
    written = json.loads(to_json(contract))
    assert written["ops"] == ["torchvision"]
    assert from_json(Contract, json.dumps(written)).ops == ("torchvision",)
    del written["ops"]
    assert from_json(Contract, json.dumps(written)).ops == ()
    with pytest.raises(ArtifactError, match=r"Contract\.ops"):
        from_json(Contract, json.dumps(written | {"ops": "torchvision"}))


@pytest.mark.parametrize("number", [float("inf"), 1e101])
def test_numbers_out_of_range_become_null(number: float) -> None:
    parity = dataclasses.replace(variant().parity, max_abs=float("nan"), max_rel=number)
    written = json.loads(to_json(parity))
    assert written["max_abs"] is None
    assert written["max_rel"] is None
    assert written["cosine"] == 1.0


HOSTILE = {
    "nothing": "",
    "not JSON": "{",
    "not UTF-8": b"\xff\xfe\x00",
    "an array": "[]",
    "a number": "3",
    "null": "null",
    "empty": "{}",
    "nested too deeply": "[" * 200_000,
    "nested too deeply inside": '{"model":' * 100_000,
    "a later schema": edited("schema", to=2),
    "a schema that is a string": edited("schema", to="1"),
    "a schema that is true": edited("schema", to=True),
    "an unknown field": edited("surprise", to=1),
    "an unknown nested field": edited("model", "surprise", to=1),
    "a missing field": json.dumps({k: v for k, v in json.loads(to_json(MANIFEST)).items() if k != "model"}),
    "a string for a number": edited("threads", to="2"),
    "true for a number": edited("threads", to=True),
    "a float for an integer": edited("threads", to=2.5),
    "null for a required field": edited("device", to=None),
    "an unknown status": edited("status", to="done"),
    "a list for a status": edited("status", to=["complete"]),
    "an unknown verdict": edited("variants", 1, "parity", "verdict", to="fine"),
    "an object for a list": edited("variants", to={}),
    "a list for an object": edited("environment", to=[]),
    "a number in a dict of strings": edited("environment", "cpu", to=3),
    "three ends of an interval": edited("variants", 1, "timings", "python", "ci95_ms", to=[1, 2, 3]),
    "an integer that no float can hold": edited("variants", 1, "lifecycle", "export_s", to=10**400),
    "an integer that is not a size": edited("variants", 1, "artifact", "bytes", to=10**400),
    "an integer that Python will not read": '{"threads": ' + "9" * 10_000 + "}",
    "a boolean dimension": edited("contract", "inputs", 0, "shape", to=[True]),
    "a float dimension": edited("contract", "inputs", 0, "shape", to=[1.5]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_raises_artifact_error(what: str) -> None:
    with pytest.raises(ArtifactError):
        from_json(Manifest, HOSTILE[what])


def test_the_error_names_a_later_schema() -> None:
    with pytest.raises(ArtifactError, match="schema 2 is not known, only 1"):
        from_json(Manifest, edited("schema", to=2))


def test_the_error_names_the_field() -> None:
    with pytest.raises(ArtifactError, match=r"Manifest\.variants\[1\]\.lifecycle\.load_s is .soon., not a number"):
        from_json(Manifest, edited("variants", 1, "lifecycle", "load_s", to="soon"))


@pytest.mark.parametrize(
    ("at", "to", "said"),
    [
        (("model",), None, "Manifest.model is null, not an object"),
        (("threads",), True, "Manifest.threads is true, not an integer"),
        (("device",), ["cpu"], 'Manifest.device is ["cpu"], not a string'),
        (("variants",), {"a": "b" * 999}, f'Manifest.variants is {{"a": "{"b" * 73}…, not a list'),
        (("model",), {}, 'Manifest.model has no field "name"'),
        (("variants", 1, "parity"), {}, 'Manifest.variants[1].parity has no field "verdict"'),
        (("model", "surprise"), 1, 'Manifest.model has an unknown field "surprise"'),
    ],
)
def test_errors_are_in_the_words_of_json(at: tuple[str | int, ...], to: Any, said: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        from_json(Manifest, edited(*at, to=to))
    assert str(raised.value) == f"not a valid Manifest: {said}"


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1e308", "-1e101"])
@pytest.mark.parametrize("name", ["median_ms", "speedup"])
def test_the_error_names_the_field_of_a_number_out_of_range(name: str, number: str) -> None:
    text = edited("variants", 1, "timings", "python", name, to=4321).replace("4321", number)
    with pytest.raises(
        ArtifactError, match=rf"Manifest\.variants\[1\]\.timings\.python\.{name} is \S+, not a finite number"
    ):
        from_json(Manifest, text)


@pytest.mark.parametrize("number", [10**101, 1e101])
def test_an_integer_out_of_range(number: float) -> None:
    with pytest.raises(ArtifactError, match=r"load_s is 1e\+101, not a finite number within ±1e\+100"):
        from_json(Manifest, edited("variants", 1, "lifecycle", "load_s", to=number))


@pytest.mark.parametrize("character", ["\x1b", "\r", "\x9b", "\x7f", "\x00", "\u202e", "\u2066", "\ud800"])
def test_control_characters_are_replaced_when_reading(character: str) -> None:
    assert from_json(Manifest, edited("variants", 1, "reason", to=f"a{character}b")).variants[1].reason == "a\ufffdb"
    assert from_json(Manifest, edited("model", "sizes", to={character: 3})).model.sizes == {"\ufffd": 3}
    with pytest.raises(ArtifactError) as raised:
        from_json(Manifest, edited("schema", to=character))
    assert character not in str(raised.value)


def test_control_characters_are_replaced_when_writing() -> None:
    model = dataclasses.replace(MANIFEST.model, sizes={"a\x1b": 1})
    manifest = dataclasses.replace(MANIFEST, model=model, command="\x1b[1mexport\x1b[0m \x9b", warnings=("one\n\ttwo",))
    found = from_json(Manifest, to_json(manifest))
    assert (found.command, found.model.sizes, found.warnings) == ("export \ufffd", {"a\ufffd": 1}, ("one\n\ttwo",))


def test_integers_are_accepted_for_floats() -> None:
    found = from_json(Manifest, edited("variants", 1, "lifecycle", "load_s", to=3))
    assert isinstance(found.variants[1].lifecycle.load_s, float)
