"""The distributions of a release: what they contain, and their rows in C++ in new environments without the checkout."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import torch
from elftools.elf.elffile import ELFFile
from support.commands import ROOT, recipe_path

from exporter.core import runners

BUILT = ROOT / "build/cpp"
PACKAGING = ROOT / "cpp/packaging"
pytestmark = pytest.mark.skipif(not (BUILT / "exporter-run").is_file(), reason="exporter-run is not built (make cpp)")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the distributions."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, PACKAGING / "make_wheels.py", "--build", BUILT, "--out", out], check=True, timeout=300
    )
    return out


def only(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


def test_the_wheel_has_everything_that_is_compiled(dist: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "cpp"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name.removeprefix("cpp/") for name in tracked.stdout.split()]
    compiled = {name for name in files if name.startswith(runners.COMPILED)}
    with zipfile.ZipFile(only(dist, "*-any.whl")) as wheel:
        shipped = {name.removeprefix("exporter_cpp/") for name in wheel.namelist() if name.startswith("exporter_cpp/")}
    assert shipped - {"README.md"} == compiled | {name for name in files if name.startswith("examples/")}


def test_the_wheel_with_the_program(dist: Path) -> None:
    """It requires the torch that it was compiled for, and loads the one beside it."""
    release = torch.__version__.partition("+")[0]
    path = only(dist, "*-linux_*.whl")
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
        assert wheel.getinfo("exporter_cpp/bin/exporter-run").external_attr >> 16 == 0o100755
    info = f"exporter-0.1.0+torch{release}.dist-info"
    about = message_from_bytes(files[f"{info}/METADATA"])
    required = [one for one in about.get_all("Requires-Dist", []) if one.startswith("torch=")]
    assert (about["Version"], required) == (f"0.1.0+torch{release}", [f"torch=={release}"])
    about = message_from_bytes(files[f"{info}/WHEEL"])
    assert (about["Root-Is-Purelib"], about["Tag"]) == ("false", f"py3-none-{path.stem.rpartition('-')[2]}")
    program = ELFFile(io.BytesIO(files["exporter_cpp/bin/exporter-run"]))
    paths = [tag.runpath for tag in program.get_section_by_name(".dynamic").iter_tags() if hasattr(tag, "runpath")]
    assert paths == ["$ORIGIN/../../torch/lib"]
    rows = {name: (digest, size) for name, digest, size in csv.reader(files[f"{info}/RECORD"].decode().splitlines())}
    assert set(rows) == set(files)
    del files[f"{info}/RECORD"]
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        assert rows[name] == (f"sha256={digest}", str(len(data))), name


def test_each_wheel_gives_rows_in_cpp(dist: Path) -> None:
    """`exporter runner build` takes a minute of CPU time here, without optimization."""
    command = [sys.executable, PACKAGING / "check_wheels.py", dist, "--targets", "trace", "--native", "trace"]
    command += ["--model", recipe_path("tiny:mlp")]
    flags = "-O0 --param ggc-min-expand=1000 --param ggc-min-heapsize=4000000"
    variables = os.environ | {"CMAKE_BUILD_TYPE": "None", "CXXFLAGS": flags}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=800, check=True)
    assert [line.split()[1:] for line in done.stdout.splitlines() if ".whl" in line and "native" in line] == [
        ["trace", "python,", "native"]
    ] * 2
