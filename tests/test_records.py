"""Records and their JSON: the round trip, hostile text, and the schema that describes them to others."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from manifests import MANIFEST, variant

from exporter import records
from exporter.errors import ArtifactError
from exporter.records import Contract, Manifest, Range, TensorSpec, Timing
from exporter.serialization import from_json, to_json

SCHEMA: dict[str, Any] = json.loads((Path(records.__file__).parent / "manifest.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
RECORDS = {
    k: v
    for k, v in vars(records).items()
    if getattr(v, "__module__", "") == records.__name__ and dataclasses.is_dataclass(v)
}


def test_round_trip() -> None:
    assert from_json(Manifest, to_json(MANIFEST)) == MANIFEST


def test_round_trip_of_a_contract() -> None:
    contract = Contract(
        "m", (TensorSpec("x", "int64", ("batch", 3, None)),), (TensorSpec("y", "float32", ()),), {"batch": Range(1, 9)}
    )
    assert from_json(Contract, to_json(contract, indent=None)) == contract


def test_a_contract_may_leave_out_its_operators() -> None:
    contract = Contract("m", (TensorSpec("x", "int64", ()),), (), {}, ops=("torchvision",))
    written = json.loads(to_json(contract))
    assert written["ops"] == ["torchvision"]
    assert from_json(Contract, json.dumps(written)).ops == ("torchvision",)
    del written["ops"]
    assert from_json(Contract, json.dumps(written)).ops == ()
    with pytest.raises(ArtifactError, match=r"Contract\.ops"):
        from_json(Contract, json.dumps(written | {"ops": "torchvision"}))


@pytest.mark.parametrize("number", [float("inf"), 1e101])
def test_numbers_that_are_not_read_become_null(number: float) -> None:
    parity = dataclasses.replace(variant().parity, max_abs=float("nan"), max_rel=number)
    written = json.loads(to_json(parity))
    assert written["max_abs"] is None
    assert written["max_rel"] is None
    assert written["cosine"] == 1.0


def edited(*path: str | int, to: Any) -> str:
    """The manifest's JSON with one value replaced."""
    data = json.loads(to_json(MANIFEST))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(data)


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
    "null where it may not be": edited("device", to=None),
    "an unknown status": edited("status", to="done"),
    "a list for a status": edited("status", to=["complete"]),
    "an unknown verdict": edited("variants", 1, "parity", "verdict", to="fine"),
    "an object for a list": edited("variants", to={}),
    "a list for an object": edited("environment", to=[]),
    "a number in a dict of strings": edited("environment", "cpu", to=3),
    "three ends of an interval": edited("variants", 1, "timings", "python", "ci95_ms", to=[1, 2, 3]),
    "an integer that no float can hold": edited("variants", 1, "lifecycle", "export_s", to=10**400),
    "an integer that is no size": edited("variants", 1, "artifact", "bytes", to=10**400),
    "an integer that Python will not read": '{"threads": ' + "9" * 10_000 + "}",
    "a boolean dimension": edited("contract", "inputs", 0, "shape", to=[True]),
    "a float dimension": edited("contract", "inputs", 0, "shape", to=[1.5]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_is_refused_in_one_way(what: str) -> None:
    with pytest.raises(ArtifactError):
        from_json(Manifest, HOSTILE[what])


def test_a_later_schema_is_named() -> None:
    with pytest.raises(ArtifactError, match="schema 2 is not known, only 1"):
        from_json(Manifest, edited("schema", to=2))


def test_the_place_of_a_mistake_is_named() -> None:
    with pytest.raises(ArtifactError, match=r"Manifest\.variants\[1\]\.lifecycle\.load_s is 'soon', not float"):
        from_json(Manifest, edited("variants", 1, "lifecycle", "load_s", to="soon"))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1e308", "-1e101"])
@pytest.mark.parametrize("name", ["median_ms", "speedup"])
def test_a_number_that_is_none_is_refused_where_it_stands(name: str, number: str) -> None:
    text = edited("variants", 1, "timings", "python", name, to=4321).replace("4321", number)
    with pytest.raises(ArtifactError, match=rf"Manifest\.variants\[1\]\.timings\.python\.{name} is \S+, which nothing"):
        from_json(Manifest, text)


@pytest.mark.parametrize("number", [10**101, 1e101])
def test_a_whole_number_that_nothing_comes_to(number: float) -> None:
    with pytest.raises(ArtifactError, match=r"load_s is 1e\+101, which nothing comes to"):
        from_json(Manifest, edited("variants", 1, "lifecycle", "load_s", to=number))


@pytest.mark.parametrize("character", ["\x1b", "\r", "\x9b", "\x7f", "\x00", "\u202e", "\u2066", "\ud800"])
def test_what_a_terminal_would_obey_is_not_read(character: str) -> None:
    assert from_json(Manifest, edited("variants", 1, "reason", to=f"a{character}b")).variants[1].reason == "a\ufffdb"
    assert from_json(Manifest, edited("model", "sizes", to={character: 3})).model.sizes == {"\ufffd": 3}
    with pytest.raises(ArtifactError) as raised:
        from_json(Manifest, edited("schema", to=character))
    assert character not in str(raised.value)


def test_what_a_terminal_would_obey_is_not_written() -> None:
    model = dataclasses.replace(MANIFEST.model, sizes={"a\x1b": 1})
    manifest = dataclasses.replace(MANIFEST, model=model, command="\x1b[1mexport\x1b[0m \x9b", warnings=("one\n\ttwo",))
    found = from_json(Manifest, to_json(manifest))
    assert (found.command, found.model.sizes, found.warnings) == ("export \ufffd", {"a\ufffd": 1}, ("one\n\ttwo",))


def test_integers_stand_for_floats() -> None:
    found = from_json(Manifest, edited("variants", 1, "lifecycle", "load_s", to=3))
    assert isinstance(found.variants[1].lifecycle.load_s, float)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_takes_a_manifest() -> None:
    VALIDATOR.validate(json.loads(to_json(MANIFEST)))


@pytest.mark.parametrize("name", RECORDS)
def test_the_schema_has_every_field_and_no_other(name: str) -> None:
    """A field that is added to a record, but not to the schema, fails here."""
    described = SCHEMA if name == "Manifest" else SCHEMA["$defs"][name]
    fields = {field.name for field in dataclasses.fields(RECORDS[name])}
    assert set(described["properties"]) == fields
    assert set(described["required"]) == fields, "all fields are always written"
    assert described["additionalProperties"] is False


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_described(name: str) -> None:
    described = SCHEMA if name == "Manifest" else SCHEMA["$defs"][name]
    for field, form in described["properties"].items():
        assert "$ref" in form or form.get("description"), f"{name}.{field}"


@pytest.mark.parametrize("name", RECORDS)
def test_the_schema_lets_the_same_fields_be_null(name: str) -> None:
    described = SCHEMA if name == "Manifest" else SCHEMA["$defs"][name]
    for field, hint in typing.get_type_hints(RECORDS[name]).items():
        form = described["properties"][field]
        kinds = [*form.get("anyOf", []), form]
        nullable = any(kind.get("type") == "null" or "null" in kind.get("type", []) for kind in kinds)
        assert nullable == (type(None) in typing.get_args(hint)), f"{name}.{field}"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("status",), "done"),
        (("surprise",), 1),
        (("golden", "file", "sha256"), "abc"),
        (("variants", 1, "parity", "verdict"), "fine"),
        (("variants", 1, "timings", "rust"), dataclasses.asdict(typing.cast(Timing, variant().timings["python"]))),
        (("contract", "symbols", "batch", "min"), 0),
    ],
)
def test_the_schema_refuses(path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(json.loads(edited(*path, to=value)))


def test_real_manifests_fit_the_schema(made_bundle: Path) -> None:
    text = (made_bundle / "manifest.json").read_text()
    VALIDATOR.validate(json.loads(text))
    assert to_json(from_json(Manifest, text)) + "\n" == text
