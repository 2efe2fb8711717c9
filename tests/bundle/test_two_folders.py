"""The same recipe exported from two folders: the bundles are identical and do not contain the paths."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from support.commands import RECIPES, Run, request_for

from exporter.model import recipes
from exporter.runs import pipeline

GENERATED = "serialization_id"  # torch's hash of all members, including those that differ


def members(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith(GENERATED)}


def test_portable_artifacts_name_no_folder(run: Run, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file in ("tiny.py", "recipes_shared.py"):
            shutil.copyfile(RECIPES / file, folder / file)
        request = request_for("tiny:pair", folder / "out", "trace,script,onnx,export")
        source = recipes.find(f"{folder / 'tiny.py'}:pair")
        made.append(pipeline.run(type(request)(**{**vars(request), "source": source}))[1])
    one, two = made
    assert (one / "model.onnx").read_bytes() == (two / "model.onnx").read_bytes()
    assert (one / "trace.pt").read_bytes() == (two / "trace.pt").read_bytes()
    assert (one / "script.pt").read_bytes() == (two / "script.pt").read_bytes()
    assert str(tmp_path).encode() not in (one / "model.onnx").read_bytes()
    assert members(one / "exported.pt2") == members(two / "exported.pt2")
    for name in ("exported.pt2", "trace.pt", "script.pt"):
        assert not any(str(tmp_path).encode() in data for data in members(one / name).values())
    assert (one / "golden.safetensors").read_bytes() == (two / "golden.safetensors").read_bytes()
