"""Which exporter-run is used, among simulated ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.core import environment, runners
from exporter.core.runners import Torch

Program = Callable[..., Path]


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Torch:
    """The torch that seems to be installed: 2.14.1+cu130. Nothing else is, and the PATH is empty."""
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "version.py").write_text("__version__ = '2.14.1+cu130'\ndebug = False\n")
    found = Torch(folder, runners.version_of(folder))
    monkeypatch.setattr(runners, "installed_torch", lambda: found)
    monkeypatch.setattr(runners, "__file__", str(tmp_path / "site/exporter/core/runners.py"))
    monkeypatch.delenv("EXPORTER_RUN", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return found


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A function that makes a runner for a torch at a path below the test's folder; with "" it does not tell which."""

    def act(path: str | Path, built: str = "2.14.1+cu130") -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x7fELF" + (runners.MARK + built.encode() + b"\n" if built else b""))
        file.chmod(0o755)
        return file

    return act


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The C++ sources of the installed package."""
    folder = tmp_path / "site/exporter_cpp"
    (folder / "src").mkdir(parents=True)
    (folder / "CMakeLists.txt").write_text("project(exporter)")
    (folder / "src/a.cpp").write_text("int a;")
    return folder


def used() -> Path | None:
    return environment.find_runner()


def test_the_order(torch: Torch, program: Program, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (used(), runners.find().reason) == (None, "exporter-run is not built")
    places = ["path", f"cache/exporter/runner/{runners.key(torch, source)}/bin", "site/exporter_cpp/bin"]
    for place in (*places, "site/build/cpp"):
        made = program(f"{place}/exporter-run")
        assert used() == made
    named = program("named")
    monkeypatch.setenv("EXPORTER_RUN", str(named))
    assert used() == named


@pytest.mark.usefixtures("torch")
def test_a_runner_for_another_torch_is_not_used(program: Program) -> None:
    for_another = program("site/build/cpp/exporter-run", "2.13.0+cu130")
    found = runners.find()
    assert found.used is None
    assert found.reason == f"{for_another} was built for torch 2.13.0+cu130, and this is torch 2.14.1+cu130"
    assert found.remedy(compiler=True) == "run `make cpp`"
    assert found.remedy(compiler=False) == "install g++, then run `exporter runner build`"
    assert environment.describe()["exporter-run"].startswith(f"none: {found.reason}; ")
    fits = program("path/exporter-run")
    found = runners.find()
    assert found.used is not None
    assert (found.used.path, found.reason) == (fits, "")
    assert [one.path for one in found.refused] == [for_another]


@pytest.mark.usefixtures("torch")
def test_builds_of_one_release_fit(program: Program) -> None:
    """LibTorch's own archives have no local part, or another one."""
    for release in ("2.14.1", "2.14.1+cpu"):
        assert program("path/exporter-run", release) == used()


@pytest.mark.usefixtures("torch")
def test_a_program_that_does_not_tell(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """EXPORTER_RUN may name a script; anything else is from another release of exporter."""
    script = program("path/exporter-run", "")
    assert used() is None
    assert "was built by another release of exporter" in runners.find().reason
    monkeypatch.setenv("EXPORTER_RUN", str(script))
    assert used() == script


@pytest.mark.usefixtures("torch")
def test_another_program_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "named"
    for text, fits in (("true", False), ("echo other 1.0", False), ("echo exporter-run 1.0", True), ("exit 3", True)):
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        monkeypatch.setenv("EXPORTER_RUN", str(path))
        found = runners.find()
        assert (found.used is not None) == fits, text
        if not fits:
            assert found.reason == f"EXPORTER_RUN names {path}, which is not exporter-run"
            assert found.remedy(compiler=True) == "correct EXPORTER_RUN, or unset it"
        runners._is_another_program.cache_clear()


@pytest.mark.usefixtures("torch")
def test_exporter_run_excludes_all_others(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program("path/exporter-run")
    monkeypatch.setenv("EXPORTER_RUN", str(tmp_path))  # a folder is executable
    found = runners.find()
    assert found.used is None
    assert found.reason == f"EXPORTER_RUN names {tmp_path}, which is not a program"
    assert found.remedy(compiler=False) == "correct EXPORTER_RUN, or unset it"


def test_without_torch_nothing_is_compared(program: Program, torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "installed_torch", lambda: None)
    assert program("path/exporter-run", "2.13.0") == used()


@pytest.mark.usefixtures("torch")
def test_a_program_that_cannot_be_read(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> bytes:
        raise PermissionError

    path = program("named")
    monkeypatch.setenv("EXPORTER_RUN", str(path))
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert used() == path


def test_a_rebuilt_runner_is_read_again(program: Program, torch: Torch) -> None:
    assert program("path/exporter-run") == used()
    program("path/exporter-run", "2.9.0")
    assert used() is None


def test_the_key_depends_on_torch_and_on_what_is_compiled(torch: Torch, source: Path, tmp_path: Path) -> None:
    def key(torch: Torch) -> str:
        runners._digest.cache_clear()
        return runners.key(torch, source)

    first = key(torch)
    (source / "README.md").write_text("not compiled")
    assert key(torch) == first
    others = [key(Torch(torch.folder, "2.14.1+cpu")), key(Torch(tmp_path / "other", torch.version))]
    (source / "src/a.cpp").write_text("int b;")
    others.append(key(torch))
    (source / "src/a.cpp").rename(source / "src/b.cpp")
    others.append(key(torch))
    assert len({first, *others}) == 5


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runners.cache() == tmp_path / ".cache/exporter/runner"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user that has no home directory
    assert runners.cache() is None


def test_the_installed_torch() -> None:
    import torch

    found = runners.installed_torch()
    assert found is not None
    assert (found.version, found.folder) == (str(torch.__version__), Path(torch.__file__).parent)
    assert runners.version_of(found.folder / "nowhere") == ""


def test_the_sources_of_this_checkout() -> None:
    found = runners.sources()
    assert found is not None
    assert all((found / name).exists() for name in runners.COMPILED)
