"""The cache of compiled objects: what it reuses, and what it compiles again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch._inductor import cpp_builder

from exporter.core import environment
from exporter.targets import _objects

Compile = Callable[..., bytes]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The commands that were run, with an empty cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    ran: list[str] = []
    run = cpp_builder.run_compile_cmd

    def note(command: str, **settings: str) -> None:
        ran.append(command)
        run(command, **settings)

    monkeypatch.setattr(cpp_builder, "run_compile_cmd", note)
    return ran


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    """A function that compiles a source as inductor does, in a folder of its own, and returns the object."""

    def act(folder: str, code: str, *flags: str) -> bytes:
        (tmp_path / folder).mkdir()
        source = tmp_path / folder / "model.wrapper.cpp"
        source.write_text(code)
        options = cpp_builder.CppOptions(compile_only=True, extra_flags=flags)
        builder = cpp_builder.CppBuilder("model.wrapper", str(source), options, str(source.parent))
        with _objects.reused():
            builder.build()
        return Path(builder.get_target_file_path()).read_bytes()

    return act


def test_an_unchanged_source_is_compiled_once(commands: list[str], compiled: Compile) -> None:
    first = compiled("one", "int f() { return 1; }")
    assert compiled("two", "int f() { return 1; }") == first
    assert len(commands) == 1


def test_a_changed_source_or_option_is_compiled_again(commands: list[str], compiled: Compile) -> None:
    first = compiled("one", "int f() { return 1; }")
    assert compiled("two", "int f() { return 2; }") != first
    compiled("three", "int f() { return 1; }", "-DOTHER")
    assert len(commands) == 3


@pytest.mark.parametrize("what", ["cpu", "torch", "compiler"])
def test_an_object_of_another_machine_is_not_used(
    commands: list[str], compiled: Compile, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled("one", "int f() { return 1; }")
    if what == "cpu":
        monkeypatch.setattr(environment, "cpu_flags", lambda: frozenset({"avx2"}))
    elif what == "torch":
        monkeypatch.setattr("torch.__version__", "2.99")
    else:
        monkeypatch.setattr(cpp_builder, "get_compiler_version_info", lambda _: "gcc 99")
    compiled("two", "int f() { return 1; }")
    assert len(commands) == 2


def test_a_failed_compilation_is_not_kept(commands: list[str], compiled: Compile, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        with pytest.raises(Exception, match="C\\+\\+ compile error"):
            compiled(folder, "int f() { return")
    assert len(commands) == 2


def test_without_a_usable_cache_everything_is_compiled(
    commands: list[str], compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/objects").write_text("in the way")
    for folder in ("one", "two"):
        assert compiled(folder, "int f() { return 1; }").startswith(b"\x7fELF")
    assert len(commands) == 2
