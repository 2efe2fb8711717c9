"""onnxruntime on a GPU replays CUDA graphs, one for each shape; a model that it cannot capture runs without one."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import onnxruntime
import pytest
import torch

import exporter
from exporter.bundle import layout
from exporter.core.records import Manifest

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 128), torch.nn.Linear(128, 8)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Waits(Net):
    def forward(self, x):
        y = super().forward(x)
        return y[y[:, 0] > -100.0]


class Branches(Net):
    def forward(self, x):
        y = super().forward(x)
        return torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,))


def net():
    return Net()


def waits():
    return Waits()


def branches():
    return Branches()


def net_inputs(batch=2):
    return {"x": torch.randn(batch, 64)}


waits_inputs = branches_inputs = net_inputs
net_sizes = waits_sizes = branches_sizes = {"batch": (1, 64)}
"""

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(), reason="onnxruntime has no CUDA provider"
)


def export(folder: Path, name: str, *options: str) -> tuple[Manifest, Path]:
    (folder / "net.py").write_text(MODEL)
    out = folder / name
    command = [sys.executable, "-m", "exporter", "export", f"{folder / 'net.py'}:{name}", "--device", "cuda"]
    command += ["--targets", "onnx", "--cuda-graphs", "--no-bench", "--out", str(out), "-q", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (out / "manifest.json").is_file(), done.stderr
    return layout.read_manifest(out), out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, Path]:
    return export(tmp_path_factory.mktemp("ort"), "net", "--precision", "fp32,tf32,fp16,bf16")


def test_every_precision_passes_through_a_graph(made: tuple[Manifest, Path]) -> None:
    manifest, _ = made
    rows = [v for v in manifest.variants if v.target == "onnx"]
    assert {v.name: v.reason for v in rows if v.status == "failed"} == {}
    assert [(v.sessions[0].provider, v.notes[1:]) for v in rows] == [("CUDA graph", ())] * 4


def test_a_model_that_is_refused_runs_without_a_graph(tmp_path: Path) -> None:
    manifest, _ = export(tmp_path, "branches")
    (row,) = [v for v in manifest.variants if v.target == "onnx"]
    assert row.status == "passed", row.reason
    assert row.sessions[0].provider == "CUDA"
    (note,) = [note for note in row.notes if note.startswith("no CUDA graph: ")]
    assert "control flow" in note


def test_a_failing_capture_fails_its_row(tmp_path: Path) -> None:
    manifest, _ = export(tmp_path, "waits")
    (row,) = [v for v in manifest.variants if v.target == "onnx"]
    assert (row.status, row.artifact is None) == ("failed", False)
    assert "--cuda-graphs" in row.reproduce


def test_replays_match_plain_runs_and_keep_earlier_outputs(made: tuple[Manifest, Path]) -> None:
    """There are more shapes than graphs, and each runs twice with different values."""
    captured = exporter.open_artifact(made[1] / "model.onnx", cuda_graphs=True)
    plain = exporter.open_artifact(made[1] / "model.onnx")
    inputs = [torch.randn(size, 64, device="cuda") for size in (*range(1, 12), *range(1, 12))]
    kept = [captured(x)["output"] for x in inputs]
    for x, got in zip(inputs, kept, strict=True):
        torch.testing.assert_close(got, plain(x)["output"], rtol=1e-5, atol=1e-6)


def test_callers_on_several_threads_and_streams(made: tuple[Manifest, Path]) -> None:
    artifact = exporter.open_artifact(made[1] / "model.onnx", cuda_graphs=True)
    inputs = [torch.randn(size, 64, device="cuda") for size in (3, 5)]
    wanted = [artifact(x)["output"].clone() for x in inputs]
    wrong: list[BaseException] = []

    def call() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    for x, want in zip(inputs, wanted, strict=True):
                        torch.testing.assert_close(artifact(x)["output"], want, rtol=1e-5, atol=1e-6)
        except BaseException as error:
            wrong.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
