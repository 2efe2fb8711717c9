"""A dozen of the architectures that `benchmarks/coverage.py` runs, at shapes that no golden has seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("names", "targets"), [([], "trace,script,onnx"), (["hf:bert", "own:mask"], "compile")], ids=["a dozen", "compiled"]
)
def test_every_artifact_is_right_or_refused(tmp_path: Path, names: list[str], targets: str) -> None:
    which = names or ["--quick"]
    command = [sys.executable, str(BENCHMARKS / "coverage.py"), *which, "--no-bare", "--targets", targets]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "coverage.json").read_text())
    assert len(found) == (len(names) or 12)
    words = [word for result in found.values() for word in result["exporter"].values()]
    assert len(words) == len(found) * len(targets.split(","))
    assert "wrong" not in words
