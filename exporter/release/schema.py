"""Build the JSON Schema of a release file from the settings of a run and the gates.

`python -m exporter.release.schema` prints it. The copy beside this file, `schema.json`, is for editors.
"""

from __future__ import annotations

import json
from typing import Any

from exporter.core import json_schema
from exporter.core.contract_records import PRECISIONS
from exporter.core.option import settings
from exporter.core.settings import RunSettings, SourceSettings
from exporter.release.plan import Gates

_TEXT = {"type": "string", "minLength": 1}
_SIZE = {"type": "integer", "minimum": 1}


def make() -> dict[str, Any]:
    """Return the schema."""
    models = {
        "type": "array",
        "minItems": 1,
        "description": "One table for each model; a model may have several if its targets have different gates.",
        "items": {
            "type": "object",
            "$ref": "#/$defs/settings",
            "properties": _MODEL | _of(SourceSettings),
            "required": ["model"],
            "unevaluatedProperties": False,
        },
    }
    out = _TEXT | {"description": "Where the bundles go; artifacts/release by default."}
    return {
        "$schema": json_schema.DIALECT,
        "title": "release.toml",
        "description": "What `exporter release` exports: models in every combination of targets, precisions, devices "
        "and sizes, with gates. "
        "Settings at the top level apply to every model. A model's own settings and gates override them one by one.",
        "type": "object",
        "$ref": "#/$defs/settings",
        "properties": {"out": out, "models": models},
        "required": ["models"],
        "unevaluatedProperties": False,
        "$defs": {
            "settings": {
                "type": "object",
                "properties": _STEPS | _of(RunSettings) | {"gates": {"$ref": "#/$defs/gates"}},
            },
            "gates": {
                "type": "object",
                "description": "What a variant must satisfy for the release to pass.",
                "properties": _of(Gates),
                "additionalProperties": False,
            },
        },
    }


def _of(record: type) -> dict[str, Any]:
    return {setting.key: json_schema.of_setting(setting) for setting in settings(record) if setting.key is not None}


_MODEL = {
    "model": _TEXT | {"description": "The model, as `exporter export` takes it."},
    "name": {
        "type": "string",
        "pattern": "^\\w[\\w.+-]*$",
        "description": "First part of the names of its steps; the model's own name by default.",
    },
}
_STEPS: dict[str, Any] = {
    "targets": {
        "type": "array",
        "items": _TEXT,
        "minItems": 1,
        "description": "As for --targets: trace, script, compile, onnx, export; trace@int8. The first four by default.",
    },
    "precisions": {
        "type": "array",
        "items": {"enum": list(PRECISIONS)},
        "minItems": 1,
        "description": "Precisions of each target that is given without one; fp32 by default.",
    },
    "devices": {
        "type": "array",
        "items": {"type": "string", "pattern": "^(cpu|cuda(:[0-9]+)?)$"},
        "minItems": 1,
        "uniqueItems": True,
        "description": "cpu, cuda or cuda:N; cpu by default.",
    },
    "sizes": {
        "type": "array",
        "items": {
            "type": "object",
            "propertyNames": {"pattern": "^[A-Za-z_]\\w*$"},
            "additionalProperties": _SIZE,
        },
        "minItems": 1,
        "uniqueItems": True,
        "description": "Sizes of the timed example, one table for each example; the recipe's own by default.",
    },
    "ranges": {
        "type": "object",
        "additionalProperties": {"type": "array", "items": _SIZE, "minItems": 2, "maxItems": 3},
        "description": "The range of a size that the artifacts support: [min, max], or [min, max, step] for multiples "
        "of step.",
    },
}

if __name__ == "__main__":
    print(json.dumps(make(), indent=2, ensure_ascii=False))
