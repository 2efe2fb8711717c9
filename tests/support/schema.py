"""The manifest's schema, and access to its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from exporter.bundle import layout as bundles
from exporter.core import records
from exporter.core.records import Manifest, VariantRecord

SCHEMA: dict[str, Any] = json.loads((Path(records.__file__).parent / "manifest.schema.json").read_text())


VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def rows(manifest: Manifest) -> dict[str, VariantRecord]:
    return {variant.name: variant for variant in manifest.variants}


def fits_the_schema(place: Path) -> Manifest:
    try:
        VALIDATOR.validate(json.loads((place / "manifest.json").read_text()))
    except jsonschema.ValidationError as error:
        pytest.fail(str(error))
    return bundles.read_manifest(place)
