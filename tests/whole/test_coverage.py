"""A dozen of the architectures that `benchmarks/coverage.py` runs, at shapes that no golden has seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from architectures import IMPOSSIBLE  # noqa: E402


@pytest.mark.parametrize(
    ("names", "targets"),
    [([], "trace,script,onnx"), (["hf:bert", "own:mask", "own:gru"], "compile")],
    ids=["a dozen", "compiled"],
)
def test_every_artifact_is_right_or_refused(tmp_path: Path, names: list[str], targets: str) -> None:
    which = names or ["--quick"]
    command = [sys.executable, str(BENCHMARKS / "coverage.py"), *which, "--no-bare", "--targets", targets]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False, timeout=800)
    assert "broken" not in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "coverage.json").read_text())
    assert len(found) == (len(names) or 12)
    words = {
        (name, target): word
        for name, result in found.items()
        for target, word in result["exporter"].items()
        if word != "right" and not (word.startswith("refused") and (name, target) in IMPOSSIBLE)
    }
    assert words == {}, done.stdout
