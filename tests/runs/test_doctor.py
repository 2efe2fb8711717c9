"""What `exporter doctor` reports about machines that lack something."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.core import environment, runners
from exporter.core.runners import Runner
from exporter.runs import build_runner, doctor
from exporter.targets import Part

RUNNER = Runner(Path("/usr/bin/exporter-run"), runners.PATH, "2.14.1+cpu")
FINE = dict.fromkeys(doctor.modules(), ("", "1.0")) | {"torch": ("", "2.14.1+cpu")}


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch):
    """Examine a machine whose imports have these results: `examine(torch=("ImportError: ...", ""))`."""

    def act(gpus: tuple[str, ...] = (), **found: tuple[str, str]) -> dict[str, Part]:
        monkeypatch.setattr(doctor, "_probe", lambda: FINE | found)
        monkeypatch.setattr(environment, "gpus", lambda: gpus)
        return {finding.what: finding for finding in doctor.examine()}

    return act


def test_a_complete_machine(examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "compiler", lambda: "/usr/bin/g++")
    monkeypatch.setattr(runners, "find", lambda: runners.Found(RUNNER))
    monkeypatch.setattr(build_runner, "starts", lambda program: "")
    found = examine(gpus=("H200, 570",), cuda=("", "13.0"), **{"target onnx": ("", "CUDAExecutionProvider CPU")})
    assert {f.level for f in found.values()} == {"ok"}
    assert found["exporter-run"].detail == "/usr/bin/exporter-run (from PATH; built for torch 2.14.1+cpu, which fits)"


def test_a_machine_without_the_tools_that_build_the_runner(examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    finding = examine()["CMake"]
    assert (finding.level, finding.remedy) == ("note", "pip install cmake")


def test_torchvision_from_a_different_build(examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "version", {"torch": "2.14.1+cpu", "torchvision": "0.29.2"}.get)
    error = "RuntimeError: operator torchvision::nms does not exist"
    found = examine(torchvision=(error, ""), transformers=(f"ModuleNotFoundError: {error}", ""))
    for name in ("torchvision", "transformers"):
        assert found[name].level == "bad"
        assert "torch 2.14.1+cpu and torchvision 0.29.2 come from different builds" in found[name].remedy
        assert "pip install" in found[name].remedy


@pytest.mark.parametrize(
    ("name", "error", "remedy"),
    [
        ("onnxscript", "ModuleNotFoundError: No module named 'onnxscript'", "pip install onnxscript"),
        ("onnxruntime", "ModuleNotFoundError: No module named 'onnxruntime'", "pip install onnxruntime-gpu"),
        ("onnx", "ImportError: libprotobuf.so", "pip install --force-reinstall onnx"),
    ],
)
def test_a_package_that_cannot_be_imported(examine, name: str, error: str, remedy: str) -> None:
    finding = examine(**{name: (error, "")})[name]
    assert (finding.level, finding.detail, finding.remedy) == ("bad", error, remedy)


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0a0+git1234", "3.0"])
def test_an_untested_torch_version(examine, version: str) -> None:
    assert examine(torch=("", version))["torch"].level == "note"


def test_no_compiler_and_no_runner(examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "compiler", lambda: None)
    monkeypatch.setattr(runners, "find", lambda: runners.Found(None))
    found = examine()
    assert (found["C++ compiler"].level, found["exporter-run"].level) == ("bad", "note")
    assert "install g++" in found["C++ compiler"].remedy
    assert found["exporter-run"].remedy == "install g++, then run `exporter runner build`"
    monkeypatch.setattr(environment, "compiler", lambda: "/usr/bin/g++")
    assert "run `exporter runner build`" in examine()["exporter-run"].remedy
    monkeypatch.setenv("CXX", "/nope/g++")
    found = examine()
    assert (found["C++ compiler"].level, found["C++ compiler"].detail) == ("bad", "CXX: /nope/g++ does not exist")
    assert found["C++ compiler"].remedy == "correct CXX, or unset it"


def test_no_openssl(examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "compiler", lambda: "/usr/bin/g++")
    assert "openssl" not in examine()
    monkeypatch.setenv("PATH", "/nowhere")
    assert (examine()["openssl"].level, examine()["C++ compiler"].level) == ("note", "ok")


def test_a_runner_for_another_torch(examine, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(
        RUNNER, path=Path("build/exporter-run"), origin=runners.CHECKOUT, refused="was built for torch 2.13.0"
    )
    monkeypatch.setattr(runners, "find", lambda: runners.Found(RUNNER, (other,)))
    monkeypatch.setattr(build_runner, "starts", lambda program: "libc10.so is missing")
    found = examine()
    assert (found["not used"].level, found["not used"].detail) == ("note", other.refused)
    assert found["not used"].remedy == "run `make cpp`"
    assert (found["exporter-run"].level, found["exporter-run"].remedy) == ("bad", "run `exporter runner build`")
    assert "does not start: libc10.so is missing" in found["exporter-run"].detail


def test_a_gpu_that_torch_cannot_use(examine) -> None:
    found = examine(gpus=("H200, 570",), cuda=("torch sees no GPU", ""), **{"target onnx": ("", "CPU")})
    assert found["GPU 0"].level == "ok"
    assert found["CUDA"].level == "bad"
    assert (found["onnxruntime"].level, found["onnxruntime"].detail) == ("bad", "lacks the CUDA provider")
    assert "pip install onnxruntime-gpu" in found["onnxruntime"].remedy


def test_a_gpu_and_a_torch_that_cannot_be_imported(examine) -> None:
    assert examine(gpus=("H200, 570",))["CUDA"].detail == "torch cannot be imported"


def test_a_python_version_without_torchscript(examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 14, 0))
    found = examine()["python"]
    assert (found.level, found.detail) == ("note", "3.14.0 is not supported by script and trace")
    assert found.remedy == "use Python 3.11 to 3.13 for script and trace"


def probe(monkeypatch: pytest.MonkeyPatch, code: int, out: str) -> dict[str, Any]:
    done = subprocess.CompletedProcess([], code, out, "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **settings: done)
    return doctor._probe()


def test_an_import_that_crashes_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(monkeypatch, -11, "")["torch"][0] == "importing it crashed the process: exit code -11"


def test_output_printed_during_an_import_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(monkeypatch, 0, 'Welcome!\n{"torch": ["", "2.14.1"]}\n') == {"torch": ["", "2.14.1"]}
