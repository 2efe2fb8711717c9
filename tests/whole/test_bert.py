"""The main use case: BERT is traced and runs in C++, without Python in the process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporter.bundle import layout
from exporter.core import environment

PYTHON_FILES = ("libpython", "libtorch_python", ".cpython-", ".abi3.so", ".py")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bert") / "bundle"
    options = ["--targets", "trace", "--weights", "random", "--no-bench", "-q", "--out", str(out)]
    options += [
        "--threads",
        "1",
        "--size",
        "batch=1..8",
        "--size",
        "sequence=1..64",
    ]  # `make demo` exports the whole range
    done = subprocess.run([sys.executable, "-m", "exporter", "export", "bert", *options], check=False)
    assert done.returncode == 0
    return out


@pytest.fixture(scope="module")
def runner() -> Path:
    found = environment.find_runner()
    assert found is not None, "build exporter-run first: make cpp"
    return found


def test_cases_cover_batches_and_sequences(traced: Path) -> None:
    manifest = layout.read_manifest(traced)
    assert manifest.golden is not None
    cases = set(map(str, manifest.golden.cases))
    wanted = {"batch=1 sequence=14", "batch=2 sequence=14", "batch=3 sequence=14", "batch=8 sequence=14"}
    assert wanted | {"batch=1 sequence=1", "batch=1 sequence=64", "batch=3 sequence=5"} <= cases
    assert manifest.golden.reference == "float64"


def test_passes_in_both_languages(traced: Path) -> None:
    record = layout.read_manifest(traced).variants[0]
    assert {s.session: s.status for s in record.sessions} == {"python": "passed", "native": "passed"}
    assert all(s.parity is not None and s.parity.cases >= 10 for s in record.sessions)


def test_verify_needs_no_python(traced: Path, runner: Path) -> None:
    """The environment is empty, and no file that the process maps belongs to Python."""
    process = subprocess.Popen(
        [str(runner), "verify", str(traced / "trace.pt")], env={}, stdout=subprocess.PIPE, text=True
    )
    mapped: set[str] = set()
    while process.poll() is None:
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        mapped |= {Path(line.split(maxsplit=5)[-1]).name for line in lines if "/" in line}
        time.sleep(0.02)
    assert process.stdout is not None
    with process.stdout as output:
        text = output.read()
    assert process.returncode == 0, text
    assert "libtorch_cpu.so" in mapped
    assert not [name for name in mapped if any(word in name for word in PYTHON_FILES)]
