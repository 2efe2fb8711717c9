"""Generate the JSON Schema of a manifest from its records.

`python -m exporter.core.manifest_schema` prints the text of `manifest.schema.json`, which is beside this file.
"""

from __future__ import annotations

import json
from typing import Any

from exporter.core import json_schema
from exporter.core.records import SCHEMA, Manifest


def make() -> dict[str, Any]:
    """Return the schema."""
    return json_schema.of_record(Manifest, f"exporter manifest, schema {SCHEMA}")


if __name__ == "__main__":
    print(json.dumps(make(), indent=2, ensure_ascii=False))
