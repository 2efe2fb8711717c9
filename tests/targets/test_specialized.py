"""One artifact with several entries."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.commands import Run, recipe_path
from support.manifests import CONTRACT

import exporter
from exporter.core import contract, probing
from exporter.core.errors import ContractError, UsageError
from exporter.core.size_range import Range
from exporter.model import recipes


@pytest.fixture(autouse=True)
def _without_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTER_RUN", "/nowhere/exporter-run")


CHOICES = {"sequence": Range(1, 6, (1, 4, 6))}


def test_a_loop_over_a_size_has_an_entry_for_each_size(run: Run) -> None:
    manifest, place = run("defects:steps", "trace,script,onnx,export", ranges=CHOICES)
    rows = {row.name: row for row in manifest.variants}
    assert manifest.golden is not None
    assert {name: row.reason for name, row in rows.items() if row.status == "failed"} == {
        "export": "an exported program supports only one entry"
    }
    assert {"batch=2 sequence=1", "batch=2 sequence=4", "batch=2 sequence=6"} <= set(map(str, manifest.golden.cases))
    torch.manual_seed(0)
    model = recipes.load(recipes.find(recipe_path("defects:steps"))).load("random")
    for file in ("trace.pt", "script.pt", "model.onnx"):
        artifact = exporter.open_artifact(place / file)
        for batch, sequence in ((1, 1), (5, 4), (2, 6)):
            x = torch.randn(batch, sequence, 3)
            torch.testing.assert_close(artifact(x)["output"], model(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(ContractError, match="sequence is 5, the contract allows 1, 4 or 6"):
            artifact(torch.randn(2, 5, 3))


def test_weights_are_stored_once(run: Run) -> None:
    place = run("defects:steps", "trace,onnx", ranges=CHOICES)[1]
    weights = 256 * 256 * 3 * 4
    for file in ("trace.pt", "model.onnx"):
        assert weights < (place / file).stat().st_size < 2 * weights, file


def test_the_entry_must_be_selected_by_a_dimension() -> None:
    with pytest.raises(UsageError, match="no input has the dimension other itself"):
        contract.selector(dataclasses.replace(CONTRACT, symbols={**CONTRACT.symbols, "other": Range(1, 2, (1, 2))}))


def test_only_one_size_can_be_specialized() -> None:
    ranges = {"batch": Range(1, 8, (1, 8)), "sequence": Range(1, 6, (1, 6))}
    with pytest.raises(UsageError, match="only one size can be specialised"):
        probing.choose_sizes({"batch": 1, "sequence": 1}, {}, {}, ranges)


def test_an_example_without_an_entry_moves_to_one(tmp_path: Path) -> None:
    base, symbols = probing.choose_sizes({"n": 14}, {"n": Range(1, 64)}, {}, {"n": Range(1, 32, (1, 16, 32))})
    assert base == {"n": 16}
    assert [sizes["n"] for sizes, _ in probing.probe_plan(base, symbols)] == [16, 16, 1, 32]
    with pytest.raises(UsageError, match="n is 5, which is outside its range, 1, 16 or 32"):
        probing.choose_sizes({"n": 14}, {}, {"n": 5}, {"n": Range(1, 32, (1, 16, 32))})
