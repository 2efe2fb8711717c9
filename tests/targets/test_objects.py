"""The cache of compiled objects: what it reuses, and what it compiles again."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._inductor import codecache, cpp_builder

from exporter.core import environment
from exporter.targets import _lean_headers, _objects

Compile = Callable[..., bytes]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The commands that were run, with an empty cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return noted(monkeypatch)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that will have the commands that are run."""
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


class Sum(torch.nn.Module):
    """Adds a number to its input."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.number


def adds(number: float, folder: Path) -> bool:
    """Return whether a package of a sum is right."""
    size = int(number) + 2
    program = torch.export.export(Sum(number), (torch.ones(size),))
    _objects.keep_headers()
    with torch.no_grad(), _objects.reused():
        made = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / f"{number}.pt2"))
    return torch.equal(torch._inductor.aoti_load_package(made)(torch.ones(size)), torch.full((size,), 1 + number))


def test_the_interface_of_packages_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = noted(monkeypatch)
    monkeypatch.setattr(_objects, "BASE", f"{_objects.BASE} // {tmp_path}")  # no other test has compiled it
    assert adds(1.0, tmp_path)
    assert adds(2.0, tmp_path)
    with torch._inductor.config.patch({"force_disable_caches": True}):
        assert adds(3.0, tmp_path)
    assert sum("interface.cpp" in command for command in commands) == 1
    assert sum(".rest.cpp" in command for command in commands) == 3
    assert not any(".wrapper.cpp" in command for command in commands)


def test_a_wrapper_that_cannot_be_split_is_compiled_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = noted(monkeypatch)
    monkeypatch.setattr(_objects, "BASE", "template class AnotherBase<AOTInductorModel>;")
    assert adds(5.0, tmp_path)
    assert sum(".wrapper.cpp" in command for command in commands) == 1


def test_a_wrapper_is_compiled_alike_for_every_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GCC uses its precompiled header; otherwise it would say why not, which is an error here."""
    commands = noted(monkeypatch)
    run = cpp_builder.run_compile_cmd

    def strictly(command: str, **settings: str) -> None:
        run(command + (" -Winvalid-pch -Werror=invalid-pch" if ".rest.cpp" in command else ""), **settings)

    monkeypatch.setattr(cpp_builder, "run_compile_cmd", strictly)
    assert adds(8.0, tmp_path)
    (wrapper,) = (command for command in commands if ".rest.cpp" in command)
    (kernel,) = (command for command in commands if ".kernel.cpp" in command and "-shared" not in command)
    assert " -m" in kernel
    assert " -m" not in wrapper
    assert "-ffp-contract=off" in wrapper
    assert not any(".wrapper.cpp" in command for command in commands)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_only_the_header_of_wrappers_in_parts_is_lean(
    known: bool, split: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is also lean only if torch has the function that is left out. Whole wrappers need the whole header."""
    commands = []

    def compile(command: str, **settings: str) -> None:
        commands.append(command)
        Path(command.split()[-1]).touch()

    monkeypatch.setattr(cpp_builder, "run_compile_cmd", compile)
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path))
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", str(tmp_path / "locks"))
    if not known:
        monkeypatch.setattr(_lean_headers, "FUNCTION", re.compile("^(a function of another version)"))
    for header in ("aoti_include/cpu.h", "cpp_prefix.h"):
        path = _objects._precompiled(
            f"torch/csrc/inductor/{header}", "command", split, device_type="cpu", aot_mode=True
        )
        assert Path(f"{path}.gch").exists()
    of_wrapper, of_kernel = commands
    assert (f"-I{tmp_path}/lean/" in of_wrapper) == (split and known)
    assert (" -m" in of_wrapper) == (not split)
    assert " -m" in of_kernel
    assert "/lean/" not in of_kernel
    for file in tmp_path.glob(f"lean/*/{_lean_headers.HEADER}"):
        assert file.read_text() == _lean_headers.lean()


def test_a_header_that_cannot_be_compiled_is_an_error_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next package in the same block is made without it."""
    with _objects.reused():
        submit = _objects._before_wrapper.get()
        assert submit is not None
        submit(fail)
        submit(fail)
        options = cpp_builder.CppOptions(compile_only=True)
        (tmp_path / "net.cpp").write_text("int f() { return 1; }")
        builder = cpp_builder.CppBuilder("net", str(tmp_path / "net.cpp"), options, str(tmp_path))
        with pytest.raises(MemoryError):
            builder.build()
        builder.build()


def test_wrappers_are_compiled_without_the_templates_of_regular_expressions() -> None:
    header = (Path(torch.__file__).parent / "include" / _lean_headers.HEADER).read_text()
    text = _lean_headers.lean()
    assert text is not None
    assert "std::regex re(" in header
    assert "std::regex re(" not in text
    assert "void parse_device_str(" in text
    assert "class AOTInductorModelBase" in text  # which follows the function
    assert len(header) - len(text) < 2000


def test_packages_are_made_if_torch_defines_the_function_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lean_headers, "FUNCTION", re.compile("^(a function of another version)"))
    assert (_lean_headers.lean(), _lean_headers.defined(), _lean_headers.folder(tmp_path)) == (None, "", None)
    with torch._inductor.config.patch({"aot_inductor.precompile_headers": False}):  # precompiling takes long
        assert adds(9.0, tmp_path)


def test_packages_need_no_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch calls it to name precompiled headers, and a machine with a compiler may lack it."""
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            with contextlib.suppress(FileExistsError):
                (tmp_path / program.name).symlink_to(program)
    (tmp_path / "openssl").unlink(missing_ok=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert adds(6.0, tmp_path)


def test_an_error_in_a_wrapper_is_raised_when_it_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_objects._Cache, "build_in_parts", fail)
    with pytest.raises(Exception, match="MemoryError"):
        adds(7.0, tmp_path)


def fail(*_: object) -> None:
    """Stand for a compiler that cannot run."""
    raise MemoryError


def test_what_arithmetic_depends_on_is_dropped() -> None:
    arithmetic = "-D CPU_CAPABILITY_AVX512 -O3 -march=native -mfma -ffp-contract=off"
    command = f"g++ a.cpp -D NAME {arithmetic} -g1 -include a.h -fPIC -Wall -I/b -c -o a.o"
    assert _objects.plain(command) == "g++ a.cpp -DNAME -fPIC -I/b -c -o a.o -O1 -w"


def test_instruction_sets_are_dropped() -> None:
    command = "g++ a.cpp -D CPU_CAPABILITY_AVX512 -D NAME -O1 -march=native -mfma -ffp-contract=off -include a.h -c"
    assert _objects.of_any_cpu(command) == "g++ a.cpp -DNAME -O1 -ffp-contract=off -include a.h -c"


def test_without_a_usable_cache_everything_is_compiled(
    commands: list[str], compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/objects").write_text("in the way")
    for folder in ("one", "two"):
        assert compiled(folder, "int f() { return 1; }").startswith(b"\x7fELF")
    assert len(commands) == 2
