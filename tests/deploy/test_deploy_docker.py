"""`exporter deploy docker`: the input of `docker build`. The tests perform its steps themselves, without docker."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import NATIVE, Cli
from support.manifests import CONTRACT, manifest, variant

from exporter.bundle.layout import read_manifest
from exporter.core import environment
from exporter.core.contract_records import TensorSpec
from exporter.core.errors import ArtifactError, JobError, UsageError
from exporter.core.parity_records import Parity
from exporter.core.records import ModelRecord
from exporter.deploy import cpp, docker
from exporter.targets import _ort_level
from exporter.workers.children import Zygote


@pytest.fixture(autouse=True)
def _one_zygote(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "Zygote", lambda: zygote.lend())


def deploy(bundle: Path, out: Path, runtime: str, name: str) -> list[tuple[str, str]]:
    """Deploy a variant; return the instructions of the Dockerfile, after hadolint found nothing to report."""
    docker.deploy(bundle, read_manifest(bundle), name, out, runtime)
    linted = subprocess.run(
        [Path(sys.executable).parent / "hadolint", out / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")
    lines = (out / "Dockerfile").read_text().splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word != "#"]


def test_the_image_has_every_module_that_the_check_imports(bundle: Path, tmp_path: Path) -> None:
    """The installed packages do not replace any of them."""
    deploy(bundle, tmp_path / "context", "onnxruntime", "onnx")
    model = tmp_path / "context" / "model"
    names = "[m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] in ('exporter', 'torch')]"
    code = f"import check, json, sys; print(check.replay(check.Path('.')).verdict); print(json.dumps({names}))"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=model, env={}, capture_output=True, text=True, check=True
    )
    verdict, files = done.stdout.splitlines()
    assert verdict == "exact"
    assert all(Path(file).is_relative_to(model / "exporter") for file in json.loads(files))


def test_the_image_with_onnxruntime(bundle: Path, tmp_path: Path) -> None:
    steps = deploy(bundle, tmp_path / "context", "onnxruntime", "onnx")
    version = environment.version("onnxruntime-gpu") or environment.version("onnxruntime")
    assert steps[0] == ("FROM", f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim")
    assert steps[1] == ("ENV", "ORT_DISABLE_TELEMETRY=1")
    assert steps[2] == ("RUN", f"pip install --no-cache-dir onnxruntime=={version} numpy=={np.__version__}")
    assert ("RUN", '["python", "check.py"]') in steps
    config = json.loads((tmp_path / "context" / "model" / "golden.json").read_text())
    assert config["graph_optimization"] == "ORT_ENABLE_ALL"
    assert config["session_options"] == []
    assert {(one["rtol"], one["min_cosine"]) for one in config["limits"]} == {(1e-4, None)}


def test_the_image_runs_with_the_options_of_the_session(bundle: Path, tmp_path: Path) -> None:
    deploy(bundle, tmp_path / "context", "onnxruntime", "onnx")
    model = tmp_path / "context" / "model"
    config = json.loads((model / "golden.json").read_text())
    options = ("execution_mode=parallel", "enable_mem_pattern=False", "session.intra_op.allow_spinning=0")
    config["session_options"] = [_ort_level.parse(one) for one in options]
    (model / "golden.json").write_text(json.dumps(config))
    assert docker.replay(model).verdict == "exact"
    config["session_options"] = [["enable_mem_pattern", "wrong"]]
    (model / "golden.json").write_text(json.dumps(config))
    with pytest.raises(JobError, match=r"check\.py fails"):
        docker.replay(model)


def test_the_image_with_onnxruntime_fails_to_build_without_parity(bundle: Path, tmp_path: Path) -> None:
    deploy(bundle, tmp_path / "context", "onnxruntime", "onnx")
    model = tmp_path / "context" / "model"
    with np.load(model / "golden.npz") as golden:
        moved = {name: value + (name in ("0.eager.0", "0.reference.0")) for name, value in golden.items()}
    np.savez(model / "golden.npz", **moved)
    with pytest.raises(JobError, match="parity is lost with onnxruntime alone: hidden at batch=1"):
        docker.replay(model)
    (model / "model.onnx").write_bytes(b"none")
    with pytest.raises(JobError, match=r"check\.py fails: .*model\.onnx"):
        docker.replay(model)


@pytest.mark.skipif(not NATIVE, reason="exporter-run is not built (make cpp)")
def test_the_image_from_scratch(bundle: Path, tmp_path: Path) -> None:
    """The image contains only root/, in which this test performs RUN."""
    steps = dict(deploy(bundle, tmp_path / "context", "cpp", "script"))
    root = tmp_path / "context" / "root"
    assert (steps["FROM"], steps["COPY"], steps["USER"]) == ("scratch", "root/ /", "65534:65534")
    command = json.loads(steps["RUN"])
    assert json.loads(steps["ENTRYPOINT"]) + json.loads(steps["CMD"]) == command
    assert not [file for file in root.rglob("*") if "python" in file.name]
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777  # packages are unpacked there, by any user
    if os.geteuid() == 0:
        done = subprocess.run(["chroot", "--userspec=65534:65534", root, *command], timeout=120, check=False)
        assert done.returncode == 0


@pytest.mark.parametrize(("runtime", "name"), [("cpp", "trace"), ("onnxruntime", "onnx")])
def test_the_user_of_the_image_may_read_it_with_any_umask(
    bundle: Path, tmp_path: Path, runtime: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build copies the permissions of the context."""

    def fill(root: Path, *_: object) -> tuple[cpp.Start, Parity]:
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        (root / "run").write_text("#!/bin/sh")
        (root / "run").chmod(0o700)
        return cpp.Start("/lib/ld.so"), Parity("exact", None, None, None, None, "")

    monkeypatch.setattr(cpp, "fill", fill)
    mask = os.umask(0o077)
    try:
        made = docker.deploy(bundle, read_manifest(bundle), name, tmp_path / "context", runtime)
    finally:
        os.umask(mask)
    assert made.files
    for path in (tmp_path / "context", *(tmp_path / "context").rglob("*")):
        runs = path.is_dir() or path.name == "run"
        expected = 0o1777 if path.name == "tmp" else 0o755 if runs else 0o644
        assert (path.name, oct(stat.S_IMODE(path.stat().st_mode))) == (path.name, oct(expected))


def test_names_cannot_escape_from_a_comment() -> None:
    model = ModelRecord("toy\nRUN rm -rf /", "toy.py:toy", "random", 0)
    assert docker.about(replace(manifest(), model=model), variant()).splitlines() == [r"toy\nRUN rm -rf /, trace"]


@pytest.mark.parametrize(
    ("target", "changes", "words"),
    [
        ("trace", {}, "does not run in onnxruntime"),
        ("onnx", {"device": "cuda"}, "for a GPU"),
        ("onnx", {"inputs": (TensorSpec("x", "bfloat16", (1,)),)}, "tensors of bfloat16"),
    ],
)
def test_artifacts_that_the_image_with_onnxruntime_cannot_run(target: str, changes: dict[str, Any], words: str) -> None:
    assert words in docker.refuse(variant(target, contract=replace(CONTRACT, **changes)))


def test_the_remedy_is_a_variant_that_fits_or_the_target_that_is_missing(tmp_path: Path) -> None:
    other = replace(variant("onnx"), contract=replace(CONTRACT, device="cuda"))
    for found, name, remedy in (
        (manifest(variant()), "trace", "export with --targets onnx"),
        (manifest(variant()), None, "export with --targets onnx"),
        (manifest(variant(), other), "trace", "mend that and export again"),
        (manifest(variant(), variant("onnx")), "trace", "give --variant onnx"),
    ):
        with pytest.raises(UsageError) as raised:
            docker.deploy(tmp_path, found, name, tmp_path / "context", "onnxruntime")
        assert raised.value.remedy == remedy


def test_altered_files_are_refused(bundle: Path, tmp_path: Path) -> None:
    with (bundle / "model.onnx").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ArtifactError, match="not the recorded"):
        deploy(bundle, tmp_path / "context", "onnxruntime", "onnx")
    with pytest.raises(UsageError, match="does not run in onnxruntime"):
        deploy(bundle, tmp_path / "context", "onnxruntime", "trace")
    assert not (tmp_path / "context").exists()


def test_the_command(cli: Cli, bundle: Path, tmp_path: Path) -> None:
    done = cli("deploy", "docker", bundle, "--runtime", "onnxruntime", "--out", tmp_path / "context")
    assert (done.code, (tmp_path / "context" / "Dockerfile").is_file()) == (0, True)
    assert "Checked there: exact, 12 cases." in done.out
