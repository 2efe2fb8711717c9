"""Exported programs in C++ on a GPU: precisions, control flow, state, and files that were exported on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.bundle import layout
from exporter.core import environment
from exporter.core.records import Manifest

RUNNER = environment.find_runner()
MODELS = """
import torch


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(50, 32), torch.nn.LayerNorm(32)
        self.layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, ids):
        x = self.embedding(ids)
        x = x + torch.arange(ids.shape[1], device=ids.device, dtype=x.dtype)[:, None] / 100
        return self.norm(x + self.layer(x, x, x, need_weights=False)[0])


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LSTM(8, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


class Choice(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


class Average(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x - self.mean


class Rows:
    sizes = {"batch": (1, 8), "length": (1, 32)}

    def __init__(self, kind):
        self.load = lambda weights: kind()

    def inputs(self, batch=2, length=6):
        return {"x": torch.randn(batch, length, 8)}


class Ids(Rows):
    def inputs(self, batch=2, length=6):
        return {"ids": torch.randint(0, 50, (batch, length))}


attention = Ids(Attention)
recurrent, choice, average = Rows(Recurrent), Rows(Choice), Rows(Average)
"""

pytestmark = pytest.mark.skipif(RUNNER is None, reason="exporter-run is not built")


def export(folder: Path, name: str, *options: str) -> tuple[Manifest, Path]:
    (folder / "models.py").write_text(MODELS)
    out = folder / name
    command = [sys.executable, "-m", "exporter", "export", f"{folder / 'models.py'}:{name}", "--targets", "export"]
    done = subprocess.run(
        [*command, "--no-bench", "--out", str(out), "-q", *options], capture_output=True, text=True, check=False
    )
    assert (out / "manifest.json").is_file(), done.stderr
    return layout.read_manifest(out), out


def failures(manifest: Manifest) -> dict[str, str]:
    """Return the reasons of the sessions that did not pass in C++."""
    found = {variant.name: [s for s in variant.sessions if s.session == "native"] for variant in manifest.variants}
    return {
        name: str([s.reason for s in native])
        for name, native in found.items()
        if [s.status for s in native] != ["passed"]
    }


def test_every_precision(tmp_path: Path) -> None:
    manifest, _ = export(tmp_path, "attention", "--device", "cuda", "--precision", "fp32,tf32,bf16,fp16")
    assert len(manifest.variants) == 4
    assert failures(manifest) == {}


@pytest.mark.parametrize("name", ["recurrent", "choice", "average"])
def test_what_a_graph_may_not_capture(tmp_path: Path, name: str) -> None:
    manifest, _ = export(tmp_path, name, "--device", "cuda")
    assert failures(manifest) == {}


@pytest.mark.parametrize("name", ["attention", "recurrent", "choice", "average"])
def test_a_program_that_was_exported_on_the_cpu(tmp_path: Path, name: str) -> None:
    """Its graph names the CPU for the positions."""
    _, place = export(tmp_path, name, "--device", "cpu")
    assert RUNNER is not None
    command = [RUNNER, "verify", place / "exported.pt2", "--device", "cuda", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout or "{}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert len(answer["cases"]) > 3
