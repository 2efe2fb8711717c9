"""The distributions of a release: what they contain, and their rows in C++ in new environments without the checkout."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import shlex
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
from exporter.runs import build_runner

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


def test_the_program_of_a_wheel_gives_rows_in_cpp(dist: Path, tmp_path: Path) -> None:
    wheel = only(dist, "*-linux_*.whl")
    (tmp_path / wheel.name).symlink_to(wheel)
    command = [sys.executable, PACKAGING / "check_wheels.py", tmp_path, "--targets", "trace", "--native", "trace"]
    command += ["--model", recipe_path("tiny:mlp")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    assert [line.split()[1:] for line in done.stdout.splitlines() if ".whl" in line and "native" in line] == [
        ["trace", "python,", "native"]
    ]


def test_the_sources_in_the_wheel_can_be_compiled(dist: Path, tmp_path: Path) -> None:
    """They are those of the checkout, which are compiled for these tests, and CMake and the compiler find them all.

    `make wheels` compiles them there, which takes minutes.
    """
    with zipfile.ZipFile(only(dist, "*-any.whl")) as wheel:
        wheel.extractall(tmp_path)
    source, tree = tmp_path / runners.PACKAGE, tmp_path / "tree"
    shipped = {file.relative_to(source): file.read_bytes() for file in source.rglob("*") if file.is_file()}
    assert {name: (ROOT / "cpp" / name).read_bytes() for name in shipped} == shipped
    torch_found = runners.installed_torch()
    assert torch_found is not None
    settings = [*build_runner.settings(build_runner.tools(), torch_found), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    subprocess.run([build_runner.tools().cmake, "-S", source, "-B", tree, *settings], check=True, timeout=100)
    units = json.loads((tree / "compile_commands.json").read_text())
    assert len(units) > 5
    for unit in units:
        command = shlex.split(unit["command"])
        command[command.index("-o") + 1] = str(tmp_path / "preprocessed")
        subprocess.run([*command, "-E"], cwd=unit["directory"], check=True, timeout=100)
