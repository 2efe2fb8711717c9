"""The environment, on simulated machines."""

from __future__ import annotations

import platform
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.core import environment
from exporter.core.errors import UsageError


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    environment.gpus.cache_clear()
    yield
    environment.gpus.cache_clear()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a function that puts a program on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def act(name: str, script: str = "exit 0") -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return act


def test_versions() -> None:
    assert environment.version("click")
    assert environment.version("a-distribution-that-nobody-has") is None


def test_describe_is_text_and_has_the_main_facts() -> None:
    facts = environment.describe()
    assert all(isinstance(value, str) and value for value in facts.values())
    assert {"cpu", "cpus", "isa", "os", "python", "compiler", "torch", "click"} <= set(facts)
    assert int(facts["cpus"]) == environment.usable_cpus() >= 1


@pytest.mark.parametrize(
    ("flags", "isa"),
    [("sse4_2 avx avx2 avx512f amx_tile", "amx_tile"), ("avx avx2 avx512f", "avx512f"), ("sse4_2", "sse4_2")],
)
def test_the_widest_instruction_set(monkeypatch: pytest.MonkeyPatch, flags: str, isa: str) -> None:
    monkeypatch.setattr(environment, "_cpuinfo", lambda: {"flags": flags, "model name": "A CPU"})
    assert environment.isa() == isa
    assert environment.cpu_flags() == set(flags.split())
    assert environment.cpu_name() == "A CPU"


@pytest.mark.parametrize(
    ("machine", "flags", "exact"),
    [
        ("x86_64", "avx2 avx512f avx512_vnni", True),
        ("x86_64", "avx2 avx_vnni", True),
        ("x86_64", "avx2 avx512f", False),
        ("x86_64", "", False),
        ("aarch64", "asimd", True),
    ],
)
def test_whether_bytes_are_added_exactly(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: str, exact: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(environment, "_cpuinfo", lambda: {"flags": flags})
    assert environment.adds_bytes_exactly() == exact


@pytest.mark.parametrize(
    ("flags", "computes"),
    [("avx2 avx512f avx512_bf16", True), ("amx_tile amx_bf16", True), ("asimd bf16", True), ("avx2 avx512f", False)],
)
def test_instructions_for_bfloat16(monkeypatch: pytest.MonkeyPatch, flags: str, computes: bool) -> None:
    monkeypatch.setattr(environment, "_cpuinfo", lambda: {"flags": flags})
    assert environment.computes_bf16() == computes


def test_a_machine_without_cpuinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, *args: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert environment.isa()
    assert environment.cpu_name()


def test_no_gpu(program) -> None:
    assert environment.gpus() == ()


ONE, TWO = "NVIDIA H200, 570.1", "NVIDIA L4, 570.1"


def test_gpus(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program("nvidia-smi", f"echo 'GPU-aa01, {ONE}'; echo; echo 'GPU-bb02, {TWO}'")
    assert environment.gpus() == (ONE, TWO)
    assert environment.describe()["gpu1"] == TWO


def test_driver(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment.driver() == ""
    environment.gpus.cache_clear()
    program("nvidia-smi", f"echo 'GPU-aa01, {ONE}'")
    assert environment.driver() == "570.1"
    environment.gpus.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-dd04")
    assert environment.driver() == ""


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1", (TWO,)),
        ("1,0", (TWO, ONE)),
        ("0, 7, 1", (ONE,)),
        ("GPU-bb", (TWO,)),
        ("GPU-aa01,GPU-bb02", (ONE, TWO)),
        ("GPU-cc03", ()),
        ("MIG-dd04", ("MIG-dd04",)),
    ],
)
def test_gpus_that_are_hidden(program, monkeypatch: pytest.MonkeyPatch, wanted: str, found: tuple[str, ...]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    program("nvidia-smi", f"echo 'GPU-aa01, {ONE}'; echo 'GPU-bb02, {TWO}'")
    assert environment.gpus() == found


def test_memory_of_a_gpu(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    program("nvidia-smi", "echo 'GPU-aa01, 1000 MiB'; echo 'GPU-bb02, [N/A]'")
    assert environment.gpu_memory_mb("cuda") is None, "nvidia-smi does not report it"
    assert environment.gpu_memory_mb("cuda:1") == pytest.approx(1048.576)
    assert environment.gpu_memory_mb("cuda:2") is None


def test_a_driver_that_does_not_answer(program) -> None:
    program("nvidia-smi", "echo 'no devices were found'; exit 9")
    assert environment.gpus() == ()
    assert environment.gpu_memory_mb("cuda") is None


def test_compiler(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert environment.compiler() is None
    clang = program("clang++")
    assert environment.compiler() == str(clang)
    gcc = program("g++")
    assert environment.compiler() == str(gcc)
    mine = program("my-c++")
    monkeypatch.setenv("CXX", "my-c++")
    assert environment.compiler() == str(mine)


def test_what_is_wrong_with_the_compiler_in_cxx(
    program: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("fine", "echo 9.4 >&2")
    program("silent", "exit 3")
    program("broken", "echo; echo no license >&2; echo more >&2; exit 1")
    (tmp_path / "text").touch()
    program("foreign").write_bytes(b"\x7fELF")
    monkeypatch.delenv("CXX", raising=False)
    assert environment.compiler_fault() == ""
    for named, fault in {
        "fine": "",
        "": "it is empty",
        "/nope/g++": "/nope/g++ does not exist",
        f"{tmp_path}/text": f"{tmp_path}/text is not an executable file",
        "silent": f"{tmp_path}/silent --version fails: its exit code is 3",
        "broken": f"{tmp_path}/broken --version fails: no license",
        "foreign": f"{tmp_path}/foreign cannot be run: Exec format error",
    }.items():
        monkeypatch.setenv("CXX", named)
        assert environment.compiler_fault() == fault


def test_the_compilers_version_is_part_of_its_identity(
    program: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert environment.compiler_identity() == ""
    for version in ("13", "14"):
        gcc = program("g++", f"echo {version}")
        assert environment.compiler_identity() == f"{gcc}{version}\n"
    program("g++").write_bytes(b"\x7fELF")
    assert environment.compiler_identity() == "", "it cannot be run"
    program("broken", "echo 15; exit 1")
    monkeypatch.setenv("CXX", "broken")
    assert environment.compiler_identity() == ""


@pytest.mark.parametrize("name", ["gpu", "cpu:0", "cuda:", "cuda:x", "", "Cuda"])
def test_a_device_that_cannot_exist_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"there is no device '{name}'"):
        environment.require_device(name)
    for known in ("cpu", "cuda", "cuda:0", "cuda:12"):
        environment.require_device(known)
