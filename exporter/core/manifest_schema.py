"""The JSON Schema of a manifest, made from its records.

`python -m exporter.core.manifest_schema` prints `manifest.schema.json` beside this file, which is for other tools.
"""

from __future__ import annotations

import json
from typing import Any

from exporter.core import json_schema
from exporter.core.records import SCHEMA, Manifest


def make() -> dict[str, Any]:
    """The schema."""
    return json_schema.of_record(Manifest, f"exporter manifest, schema {SCHEMA}")


if __name__ == "__main__":
    print(json.dumps(make(), indent=2, ensure_ascii=False))
