"""int8 on a GPU: AOTInductor packages have int8 weights; the other targets report that they do not support it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from exporter.bundle import layout
from exporter.core import environment

pytest.importorskip("torchao")
MODEL = """
import torch


def wide():
    return torch.nn.Sequential(torch.nn.Linear(512, 3072), torch.nn.ReLU(), torch.nn.Linear(3072, 512)).eval()


def wide_inputs(batch=2):
    return {"input": torch.randn(batch, 512)}


wide_sizes = {"batch": (1, 64)}
"""


def test_int8_is_the_weights_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(MODEL)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "exporter", "export", f"{tmp_path / 'wide.py'}:wide", "--device", "cuda"]
    command += [
        "--targets",
        "compile,compile@int8,trace@int8,onnx@int8",
        "--time-budget",
        "0.3",
        "--out",
        str(out),
        "-q",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = {v.name: v for v in layout.read_manifest(out).variants}
    row = rows["compile@int8"]
    assert row.status == "passed", (row.reason, done.stderr)
    assert row.parity is not None
    assert row.parity.max_abs > 1e-5, "the model must really be quantized"
    assert "weights in int8, computed in bfloat16" in row.notes
    sizes = {name: (out / f"{name}.pt2").stat().st_size for name in ("compile", "compile@int8")}
    assert sizes["compile"] - sizes["compile@int8"] > 0.7 * 4 * 2 * 512 * 3072
    if environment.find_runner():
        assert {s.session: s.status for s in row.sessions}["native"] == "passed"
    for name in ("trace@int8", "onnx@int8"):
        assert rows[name].status == "failed"
        assert "compile@int8" in rows[name].remedy
