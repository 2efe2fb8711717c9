"""A dozen of the architectures of `benchmarks/coverage.py`, judged at shapes that are not in any golden."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.commands import BENCHMARKS, Cli


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """Import benchmarks/coverage.py under another name, because there is a package `coverage`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        spec = importlib.util.spec_from_file_location("coverage_of_architectures", BENCHMARKS / "coverage.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def test_every_artifact_is_right_or_refused(
    benchmark: ModuleType, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPORTER_RUN", "/none")
    exported = {name: ["trace", "script", "onnx"] for name in benchmark.architectures.QUICK}
    exported["own:mask"] = [*exported["own:mask"], "compile"]
    exported["own:gru"] = ["compile"]
    for name, targets in exported.items():
        cli(*benchmark.export_arguments(name, targets, tmp_path / "bundles" / benchmark.folder_of(name)))
    command = [sys.executable, str(BENCHMARKS / "coverage.py"), *exported, "--no-bare"]
    command += ["--exported", str(tmp_path / "bundles"), "--jobs", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert "broken" not in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "coverage.json").read_text())
    assert len(found) == 13
    assert {name: list(result["exporter"]) for name, result in found.items()} == exported
    unexpected = {
        (name, target): verdict
        for name, result in found.items()
        for target, verdict in result["exporter"].items()
        if verdict != "right"
        and not (verdict.startswith("refused") and (name, target) in benchmark.architectures.IMPOSSIBLE)
    }
    assert unexpected == {}, done.stdout
