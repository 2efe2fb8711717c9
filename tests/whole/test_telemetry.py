"""onnxruntime's telemetry is off wherever exporter runs, unless the environment allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import recipe_path

from exporter.bundle.layout import read_manifest
from exporter.deploy import docker
from exporter.workers.children import Zygote

VARIABLE = "ORT_DISABLE_TELEMETRY"
OPEN = """
import sys, torch
from exporter import open_artifact
open_artifact(sys.argv[1])(*(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3)))
"""


def run_clean(place: Path, *words: object, **environment: str) -> list[str]:
    """Run Python with an empty home and temporary folder; return the paths of the files that it leaves there."""
    home, scratch = place / "home", place / "scratch"
    for folder in (home, scratch):
        folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "XDG_CACHE_HOME")}
    told = kept | {"HOME": str(home), "TMPDIR": str(scratch)} | environment
    subprocess.run([sys.executable, *map(str, words)], env=told, check=True, capture_output=True, timeout=300)
    left = (path for folder in (home, scratch) for path in folder.rglob("*"))
    return sorted(str(path.relative_to(place)) for path in left)


def test_an_export_leaves_no_files(tmp_path: Path) -> None:
    """Neither the home nor the temporary folder has files from any process of the run."""
    words = ("export", recipe_path("tiny:mlp"), "--targets", "onnx", "--no-bench", "--out", tmp_path / "out")
    left = run_clean(tmp_path, "-m", "exporter", *words)
    assert [path for path in left if "Microsoft" in path or "ses" in Path(path).suffix] == []
    assert left == []


def test_the_api_leaves_no_files(made_bundle: Path, tmp_path: Path) -> None:
    assert run_clean(tmp_path, "-c", OPEN, made_bundle / "model.onnx") == []


def test_telemetry_can_be_allowed(tmp_path: Path) -> None:
    """A value that the user has set is not changed."""
    code = f"import os, exporter; assert os.environ[{VARIABLE!r}] == '0'"
    run_clean(tmp_path, "-c", code, **{VARIABLE: "0"})


@pytest.mark.parametrize("module", ["api", "workers.forkserver", "workers.session.server", "release.executor"])
def test_telemetry_is_off_before_onnxruntime_is_imported(module: str, tmp_path: Path) -> None:
    code = f"""
import os, sys
def look(event, arguments):
    if event == "import" and arguments[0] == "onnxruntime":
        assert os.environ.get({VARIABLE!r}) == "1", "too early"
sys.addaudithook(look)
import exporter.{module}
import onnxruntime
"""
    run_clean(tmp_path, "-c", code)


def test_telemetry_is_off_in_a_deployment(bundle: Path, zygote: Zygote, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(docker, "Zygote", lambda: zygote.lend())
    monkeypatch.delenv(VARIABLE)
    out = tmp_path / "context"
    docker.deploy(bundle, read_manifest(bundle), "onnx", out, "onnxruntime")
    assert f"ENV {VARIABLE}=1\n" in (out / "Dockerfile").read_text()
    (tmp_path / "run").mkdir()
    shutil.copytree(out / "model", tmp_path / "model")
    assert run_clean(tmp_path / "run", "-B", tmp_path / "model" / "check.py") == []
