"""The readers in Python and C++ accept the same contracts: cpp/tests/test_contract.cpp reads `contracts.json` too."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import exporter
from exporter import targets
from exporter.core.errors import ArtifactError, ContractError, UsageError

TABLE = json.loads((Path(__file__).parents[1] / "contracts.json").read_text())


def patched(node: Any, patch: list[dict[str, Any]]) -> Any:
    """Apply a JSON Patch (RFC 6902) of the operations in the table: `add`, `replace` and `remove`."""
    node = copy.deepcopy(node)
    for step in patch:
        *way, last = step["path"].split("/")[1:]
        place = node
        for part in way:
            place = place[int(part) if isinstance(place, list) else part]
        if step["op"] == "remove":
            del place[int(last) if isinstance(place, list) else last]
        elif isinstance(place, list) and step["op"] == "add":
            place.insert(len(place) if last == "-" else int(last), step["value"])
        else:
            place[last] = step["value"]
    return node


@pytest.mark.parametrize("case", TABLE["cases"], ids=[case["name"] for case in TABLE["cases"]])
def test_a_contract(case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trace", "script", "compile"):
        monkeypatch.setattr(targets.get(name), "load", lambda path, options: targets.Loaded(lambda inputs: inputs))
    text = case["text"] if "text" in case else json.dumps(patched(TABLE["base"], case["patch"]))
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/extra/contract.json", text)
    try:
        exporter.open_artifact(tmp_path / "model.pt")
        verdict = "taken"
    except (ArtifactError, ContractError, UsageError):
        verdict = "refused"
    assert verdict == case["verdict"]
