"""Outputs on CUDA keep types that onnxruntime's own conversion loses: booleans and bfloat16."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

RECIPES = """
import torch


class Flags(torch.nn.Module):
    def forward(self, x):
        return x > 0, x * 2


def flags():
    return Flags()


def flags_inputs(batch=2):
    return {"x": torch.randn(batch, 4)}


def half():
    return torch.nn.Linear(4, 3).bfloat16()


def half_inputs(batch=2):
    return {"input": torch.randn(batch, 4).bfloat16()}
"""


@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(), reason="onnxruntime has no CUDA provider"
)
@pytest.mark.parametrize("name", ["flags", "half"])
def test_types_of_outputs(tmp_path: Path, name: str) -> None:
    (tmp_path / "types_of_outputs.py").write_text(RECIPES)
    options = ["--device", "cuda", "--targets", "onnx", "--cuda-graphs", "--no-bench", "--json", "-q"]
    options += ["--out", str(tmp_path / "bundle")]
    command = [sys.executable, "-m", "exporter", "export", f"{tmp_path / 'types_of_outputs.py'}:{name}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    record = json.loads(done.stdout)["variants"][-1]
    assert record["status"] == "passed", record["reason"]
    assert record["sessions"][0]["provider"] == "CUDA graph", record["notes"]
