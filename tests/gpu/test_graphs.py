"""exporter-run on a GPU: CUDA graphs, one for each shape, TF32, and operators that cannot be captured."""

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
MODEL = """
import torch
import torchvision


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


def net():
    return Net()


class Wide(Net):  # its outputs are megabytes
    def forward(self, x):
        y = torch.relu(self.first(x))
        return y.repeat(1, 200), super().forward(x)


class Deforms(torch.nn.Module):  # torchvision's kernels run on the default stream
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x):
        image = x.reshape(-1, 4, 4, 4).relu()
        offset = image.mean(1, keepdim=True).repeat(1, 18, 1, 1)
        return torchvision.ops.deform_conv2d(image, offset, self.weight, padding=1)


def deforms():
    return Deforms()


def waits():
    return Waits()


def wide():
    return Wide()


def net_inputs(batch=2):
    return {"x": torch.randn(batch, 64)}


deforms_inputs = waits_inputs = wide_inputs = net_inputs
net_sizes = deforms_sizes = waits_sizes = wide_sizes = {"batch": (1, 64)}
"""

pytestmark = pytest.mark.skipif(RUNNER is None, reason="exporter-run is not built")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)


def export(folder: Path, name: str, *options: str) -> tuple[Manifest, Path]:
    (folder / "net.py").write_text(MODEL)
    out = folder / name
    command = [sys.executable, "-m", "exporter", "export", f"{folder / 'net.py'}:{name}", "--device", "cuda"]
    done = run(*command, "--time-budget", "0.3", "--out", str(out), "-q", *options)
    assert (out / "manifest.json").is_file(), done.stderr
    return layout.read_manifest(out), out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, Path]:
    return export(
        tmp_path_factory.mktemp("graphs"), "net", "--targets", "trace,compile,export", "--precision", "fp32,tf32,fp16"
    )


@pytest.fixture(scope="module")
def made_wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Manifest, Path]:
    return export(tmp_path_factory.mktemp("wide"), "wide", "--targets", "trace,compile,export")


def test_every_precision_passes_through_a_graph(made: tuple[Manifest, Path]) -> None:
    manifest, _ = made
    assert {v.name: v.reason for v in manifest.variants if v.status == "failed"} == {}
    sessions = [s for v in manifest.variants for s in v.sessions if s.session == "native"]
    assert len(sessions) == 9
    assert {s.provider for s in sessions} == {"CUDA graph"}


@pytest.mark.parametrize("artifact", ["trace.pt", "compile.pt2", "exported.pt2"])
@pytest.mark.parametrize("graphs", ["0", "1", "8"])
def test_all_shapes_are_right_with_any_number_of_graphs(
    made: tuple[Manifest, Path], artifact: str, graphs: str
) -> None:
    """With one graph, every shape after the first runs without one."""
    assert RUNNER is not None
    done = run(RUNNER, "verify", made[1] / artifact, "--cuda-graphs", graphs, "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert len(answer["cases"]) > 3


@pytest.mark.parametrize("name", ["net", "wide"])
@pytest.mark.parametrize("artifact", ["trace.pt", "compile.pt2", "exported.pt2"])
def test_outputs_belong_to_the_caller(
    made: tuple[Manifest, Path], made_wide: tuple[Manifest, Path], name: str, artifact: str
) -> None:
    """Later calls do not change the outputs of earlier ones, on one stream and on two."""
    assert RUNNER is not None
    bundle = {"net": made, "wide": made_wide}[name][1]
    done = run(RUNNER.parent / "test_graphs", bundle / artifact)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("artifact", ["trace.pt", "compile.pt2", "exported.pt2"])
def test_several_callers_share_graphs(made: tuple[Manifest, Path], artifact: str) -> None:
    assert RUNNER is not None
    done = run(
        RUNNER,
        "bench",
        made[1] / artifact,
        "--callers",
        "4",
        "--streams",
        "4",
        "--runs",
        "20",
        "--windows",
        "2",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["calls"] == 160


def test_a_model_that_cannot_be_captured_runs_without_a_graph(tmp_path: Path) -> None:
    """A boolean index waits for the device, which a capture forbids."""
    manifest, _ = export(tmp_path, "waits", "--targets", "trace")
    (record,) = [v for v in manifest.variants if v.name == "trace"]
    assert record.status == "passed", record.reason
    native = next(s for s in record.sessions if s.session == "native")
    assert native.provider.startswith("no CUDA graph: ")
    assert record.timings["native"].median_ms > 0


def test_a_missing_gpu_is_an_error(made: tuple[Manifest, Path]) -> None:
    assert RUNNER is not None
    done = run(RUNNER, "verify", made[1] / "trace.pt", "--device", "cuda:99")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cuda:99" in done.stderr


def test_out_of_memory_fails_only_its_row(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text(
        "import torch\n\n\nclass Big(torch.nn.Module):\n    def forward(self, x):\n"
        "        big = torch.empty(int(x.shape[0]) * 10**12, device=x.device)\n"
        "        return x + big[0]\n\n\ndef big():\n    return Big()\n\n\n"
        "def big_inputs(batch=2):\n    return {'x': torch.ones(batch, 4)}\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "exporter", "export", f"{tmp_path / 'big.py'}:big", "--device", "cuda"]
    done = run(*command, "--targets", "trace", "--no-bench", "--json", "-q", "--out", out)
    record = json.loads(done.stdout)["variants"][-1]
    assert (done.returncode, record["status"]) == (1, "failed")
    assert "memory" in record["reason"]


def test_an_operator_outside_the_current_stream_runs_without_a_graph(tmp_path: Path) -> None:
    """A graph lacks it: a replay returns what the operator computed while the graph was captured."""
    manifest, _ = export(tmp_path, "deforms", "--targets", "trace", "--no-bench")
    (trace,) = manifest.variants
    assert trace.status == "passed", trace.reason
    (native,) = [session for session in trace.sessions if session.session == "native"]
    assert "an operator does not run on the current stream" in native.provider
