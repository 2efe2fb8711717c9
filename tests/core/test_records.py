"""The published JSON Schema of the manifest."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.manifests import MANIFEST, edited, variant
from support.schema import SCHEMA, VALIDATOR

from exporter.core import contract_records, manifest_schema, parity_records, records, timing_records
from exporter.core.json_codec import from_json, to_json
from exporter.core.records import Manifest
from exporter.core.timing_records import Timing

MODULES = (contract_records, parity_records, timing_records, records)
RECORDS = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if getattr(value, "__module__", "") == module.__name__ and dataclasses.is_dataclass(value)
}


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_accepts_a_manifest() -> None:
    VALIDATOR.validate(json.loads(to_json(MANIFEST)))


def test_the_schema_matches_the_records() -> None:
    """`make schemas` updates it."""
    assert manifest_schema.make() == SCHEMA


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_described(name: str) -> None:
    described = SCHEMA if name == "Manifest" else SCHEMA["$defs"][name]
    for field, form in described["properties"].items():
        assert "$ref" in form or form.get("description"), f"{name}.{field}"


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
def test_the_schema_rejects(path: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(json.loads(edited(*path, to=value)))


def test_the_schema_accepts_real_manifests(made_bundle: Path) -> None:
    text = (made_bundle / "manifest.json").read_text()
    VALIDATOR.validate(json.loads(text))
    assert to_json(from_json(Manifest, text)) + "\n" == text
