"""Axes and arguments of artifacts have the contract's names, visible to any tool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from support.commands import Run

from exporter.bundle.layout import read_manifest
from exporter.core.contract_records import Contract
from exporter.core.records import VariantRecord
from exporter.model.torchscript import codegen


def opened(place: Path, variant: VariantRecord) -> list[str]:
    """Return the names of the arguments of the artifact's forward."""
    assert variant.artifact is not None
    module = torch.jit.load(str(place / variant.artifact.path))
    return [argument.name for argument in module.forward.schema.arguments[1:]]


def axes(values: Any) -> list[tuple[Any, ...]]:
    return [tuple(d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim) for v in values]


def inner_symbols(graph: onnx.GraphProto) -> set[str]:
    said = [d.dim_param for v in graph.value_info for d in v.type.tensor_type.shape.dim if d.dim_param]
    return {name for text in said for name in re.findall(r"[A-Za-z_]\w*", text)}


def promised(variant: VariantRecord) -> Contract:
    assert variant.contract is not None
    return variant.contract


@pytest.mark.parametrize("recipe", ["tiny:pair", "stateful:conv_streaming", "stepped:view"])
def test_onnx_axes_and_arguments(recipe: str, run: Run) -> None:
    manifest, place = run(recipe, "trace,script,onnx", state="inputs")
    assert {v.name: v.reason for v in manifest.variants if v.status == "failed"} == {}
    by_name = {v.name: v for v in manifest.variants}
    for name in ("trace", "script"):
        wanted = codegen.arguments([spec.name for spec in promised(by_name[name]).inputs])
        assert opened(place, by_name[name]) == wanted
    graph, contract = onnx.load(str(place / "model.onnx")).graph, promised(by_name["onnx"])
    for values, specs in ((graph.input, contract.inputs), (graph.output, contract.outputs)):
        assert axes(values) == [spec.shape for spec in specs]
    assert {name for name in inner_symbols(graph) if re.fullmatch(r"s\d+", name)} == set()


def test_arguments_of_artifacts_that_carry_their_state(run: Run) -> None:
    manifest, place = run("stateful:conv_streaming", "trace,script")
    for variant in manifest.variants:
        assert opened(place, variant) == ["x"]


def test_arguments_of_artifacts_with_entries(run: Run) -> None:
    from exporter.core.size_range import Range

    manifest, place = run("tiny:pair", "trace,script,onnx", ranges={"sequence": Range(3, 6, (3, 6))})
    for variant in manifest.variants[:2]:
        assert opened(place, variant) == ["ids", "mask"]
    assert axes(onnx.load(str(place / "model.onnx")).graph.input) == [("batch", "sequence")] * 2


def test_arguments_of_a_natively_scripted_model(made_bundle: Path) -> None:
    for variant in read_manifest(made_bundle).variants:
        if variant.target in ("trace", "script"):
            assert opened(made_bundle, variant) == ["ids", "mask"]


def test_names_that_are_invalid_as_arguments() -> None:
    given = ["input", "state.h", "x.0", "x_0", "0", "self", "lambda", "float", "größe"]
    assert codegen.arguments(given) == [
        "input", "state_h", "x_0", "x_0_", "_0", "_self", "_lambda", "_float", "gr__e",
    ]  # fmt: skip
    assert codegen.unused("answer", ["answer", "answer_"]) == "answer__"
