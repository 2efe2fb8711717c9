"""The CUDA path of every target, in Python and in C++."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.bundle import layout
from exporter.core import environment
from exporter.core.records import Manifest

TARGETS = "trace,script,compile,export,compile:default,compile:reduce-overhead"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "exporter", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    out = tmp_path_factory.mktemp("cuda") / "resnet18"
    done = run(
        "export",
        "resnet18",
        "--weights",
        "random",
        "--device",
        "cuda",
        "--targets",
        TARGETS,
        "--time-budget",
        "0.5",
        "--out",
        str(out),
        "-q",
    )
    assert (out / "manifest.json").is_file(), done.stderr
    return layout.read_manifest(out)


@pytest.mark.parametrize("name", ["eager", *TARGETS.split(",")])
def test_variant_passes_and_is_timed(manifest: Manifest, name: str) -> None:
    record = next(v for v in manifest.variants if v.name == name)
    assert record.status == "passed", record.reason
    assert record.timings["python"].median_ms > 0
    assert record.contract is not None
    assert record.contract.device == "cuda"


@pytest.mark.parametrize("name", ["trace", "script", "compile", "export"])
@pytest.mark.skipif(environment.find_runner() is None, reason="exporter-run is not built")
def test_native_session_passes(manifest: Manifest, name: str) -> None:
    record = next(v for v in manifest.variants if v.name == name)
    session = next(s for s in record.sessions if s.session == "native")
    assert session.status == "passed", session.reason


def test_onnx_runs_on_cuda_or_fails(tmp_path: Path) -> None:
    """A fallback to the CPU never passes."""
    done = run(
        "export",
        "resnet18",
        "--weights",
        "random",
        "--device",
        "cuda",
        "--targets",
        "onnx",
        "--no-bench",
        "--out",
        str(tmp_path / "b"),
        "--json",
        "-q",
    )
    record = json.loads(done.stdout)["variants"][-1]
    if record["status"] == "passed":
        assert record["sessions"][0]["provider"].startswith("CUDA")
    else:
        assert "CPU" in record["reason"] or "CUDA" in record["reason"]


def test_absent_gpu_is_refused() -> None:
    done = run("export", "resnet18", "--device", "cuda:99", "--no-bench")
    assert done.returncode == 2
    assert "cuda:99" in done.stderr
