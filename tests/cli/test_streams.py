"""If the output is closed or full, or its reader is gone, the work is still done and sets the exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import recipe_path

from exporter.bundle import layout as bundles

PROGRAM = f"'{sys.executable}' -P -m exporter"


def shell(line: str) -> tuple[int, str, str]:
    """Run a line of bash in which `exporter` is the one under test; return its exit code, output and errors."""
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; exporter() {{ {PROGRAM} "$@"; }}; {line}'],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("form", ["table", "json", "html"])
def test_a_reader_that_stops_early(made_bundle: Path, form: str) -> None:
    code, out, err = shell(f"exporter report '{made_bundle}' --format {form} | head -c 1")
    assert (code, len(out), err) == (0, 1, "")


@pytest.mark.parametrize("encoding", ["latin-1", "latin-1:surrogateescape"])
def test_an_encoding_that_lacks_characters(made_bundle: Path, encoding: str, tmp_path: Path) -> None:
    (tmp_path / "release.toml").write_text('[[models]]\nmodel = "bert"\nname = "größe-中"\ntargets = ["trace"]\n')
    setting = f"export PYTHONIOENCODING={encoding}"
    code, out, err = shell(f"{setting}; exporter report '{made_bundle}'")
    assert (code, err) == (0, "")
    assert "-----" in out
    code, out, err = shell(f"{setting}; exporter release '{tmp_path}/release.toml' --dry-run | iconv -f latin1")
    assert (code, err) == (0, "")
    assert "\\u4e2d/cpu/trace" in out
    code, out, err = shell(f"{setting}; exporter report '{tmp_path}/größe' 2>&1 | iconv -f latin1")
    assert (code, err) == (2, "")
    assert out.startswith("Error: ")


@pytest.mark.parametrize(
    ("where", "said"),
    [(">&-", "it is closed"), (">&- <&-", "it is closed"), ("> /dev/full", "No space left on device")],
)
def test_a_report_that_cannot_be_written(made_bundle: Path, where: str, said: str) -> None:
    code, _, err = shell(f"exporter report '{made_bundle}' {where}")
    assert code == 74
    assert f"Error: the output cannot be written: {said}" in err
    assert "if it made a bundle, `exporter report BUNDLE` shows it" in err


@pytest.mark.parametrize("where", ["2>&-", "2> /dev/full", "2>&- <&-", ">&- 2>&- <&-"])
def test_an_error_message_that_cannot_be_written(made_bundle: Path, where: str) -> None:
    assert shell(f"exporter report '{made_bundle}/none' {where}")[0] == 2


@pytest.mark.parametrize(
    ("where", "code"),
    [("2>&-", 0), (">&- 2>&- <&-", 74), ("> /dev/full", 74)],
)
def test_a_bundle_is_made_even_if_the_output_cannot_be_written(tmp_path: Path, where: str, code: int) -> None:
    out = tmp_path / "toy"
    words = f"exporter export '{recipe_path('tiny:mlp')}' --targets trace --no-bench --threads 1 --device cpu"
    assert shell(f"{words} --out '{out}' {where}")[0] == code
    (row,) = bundles.read_manifest(out).variants
    assert row.status == "passed"
    assert not list((out / "logs").glob("*.pt"))


def test_an_unwritable_output_does_not_hide_a_failure(tmp_path: Path) -> None:
    words = f"exporter export '{recipe_path('broken:forward_raises')}' --targets trace --no-bench --device cpu"
    assert shell(f"{words} --out '{tmp_path / 'toy'}' > /dev/full")[0] == 1
