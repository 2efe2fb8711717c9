"""Profiles on a GPU: the time of a kernel goes to the line whose operators launch it."""

from __future__ import annotations

from pathlib import Path

from support.commands import request_for

from exporter.core import environment
from exporter.runs import pipeline, profile_bundle
from exporter.runs.profile_bundle import Asked


def test_the_larger_layer_is_named_first_in_every_variant(tmp_path: Path) -> None:
    names = ["trace", "compile", "export", "compile:default"]
    names += ["onnx"] if environment.version("onnxruntime-gpu") else []
    pipeline.run(request_for("profiled:wide", tmp_path / "bundle", ",".join(names), dynamic="none", device="cuda"))
    found, _ = profile_bundle.run(tmp_path / "bundle", Asked(seconds=0.3), lambda step: None)
    assert {one.name: one.reason for one in found.variants} == dict.fromkeys(("eager", *names), "")
    for variant in found.variants:
        line = found.lines[variant.times[0].line]
        assert line.module.startswith("layers.1"), (variant.name, line)
