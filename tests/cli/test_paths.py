"""Difficult paths and folders: unusual names, missing, full, deleted."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.commands import Cli, Run

from exporter.bundle import layout
from exporter.core import environment, filesystem
from exporter.core.errors import BundleError, JobError
from exporter.workers.children import Zygote

ODD = os.fsdecode(b"a b'c\"d\n\xff$(e)")


def test_a_plain_path_is_used_directly(tmp_path: Path) -> None:
    with filesystem.plain(tmp_path) as known:
        assert known == tmp_path


@pytest.mark.parametrize("name", ["a b", "it's", 'quo"ted', "new\nline", "größe", os.fsdecode(b"\xff"), "$(e)", "a;b"])
def test_an_unusual_path_is_used_through_a_link(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with filesystem.plain(folder) as known:
        assert str(known).isascii()
        assert not set(str(known)) & set(" '\"\n$;")
        (known / "made").write_text("here")
    assert (folder / "made").read_text() == "here"
    assert not known.is_symlink()


def test_an_unusual_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with filesystem.plain(folder) as known:
        assert known == folder


@pytest.mark.skipif(environment.compiler() is None, reason="there is no C++ compiler")
def test_export_to_an_unusual_path(run: Run, cli: Cli, tmp_path: Path) -> None:
    """Inductor splits its commands like a shell, and torch.jit.save needs a UTF-8 path."""
    manifest, place = run("tiny:mlp", "trace,compile", out=tmp_path / ODD)
    assert {v.name: v.reason for v in manifest.variants} == {"trace": "", "compile": ""}
    assert place == tmp_path / ODD
    assert layout.read_manifest(place).passes
    done = cli("check", place, "-q")
    assert (done.code, "2 of 2 variants passed" in done.out) == (0, True)


def test_a_deleted_working_directory(tmp_path: Path) -> None:
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); from exporter.cli import main; "
    code += "sys.argv[1:] = ['models']; main()"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "gone"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr == "Error: the working directory has been deleted\n  cd to another one\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", f"{tempfile.gettempdir()}/x"), "No space left on device"),
        (OSError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "no temporary folder"),
    ],
)
def test_a_full_temporary_folder(error: OSError, said: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from exporter import report

    def fails(*_: object) -> str:
        raise error

    monkeypatch.setattr(layout, "read_manifest", fails)
    monkeypatch.setattr(report, "render_all", fails)
    done = cli("report", "somewhere")
    assert done.code == 2
    assert said in done.err
    assert "free some space, or set TMPDIR to another folder" in done.err
    assert "Traceback" not in done.err


def test_other_system_errors_do_not_blame_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert filesystem.temporary_error(OSError(errno.ENOSPC, "full", "/elsewhere/x")) is None
    assert filesystem.temporary_error(FileNotFoundError(errno.ENOENT, "none", f"{tempfile.gettempdir()}/x")) is None
    (tmp_path / "net.py").touch()  # in the temporary folder, and there
    unread = PermissionError(errno.EACCES, "Permission denied", f"{tempfile.gettempdir()}/net.py")
    assert filesystem.temporary_error(unread) is not None
    unread.filename = str(tmp_path / "net.py")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert filesystem.temporary_error(unread) is None
    known = filesystem.error(OSError(errno.ENOSPC, "full", f"{tempfile.gettempdir()}/x"), Path("/elsewhere"))
    assert isinstance(known, BundleError)
    assert known.remedy == "free some space, or set TMPDIR to another folder"


def test_a_folder_in_place_of_an_output_below_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    known = filesystem.error(IsADirectoryError(errno.EISDIR, "a directory", str(tmp_path / "out")), Path("out"))
    assert known.remedy == "give another --out"


@pytest.mark.parametrize("ready", [True, False])
def test_a_killed_zygote_is_reported(ready: bool, tmp_path: Path) -> None:
    with Zygote() as zygote:
        if ready:
            zygote._await_ready()
        zygote._process.send_signal(signal.SIGKILL)
        zygote._process.wait()
        with pytest.raises(JobError, match="the process that jobs are forked from was ended by SIGKILL") as raised:
            zygote.spawn("job", "support.jobs:nothing", {}, tmp_path / "log")
    assert raised.value.remedy == "run it again"
