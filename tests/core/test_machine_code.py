"""Machine code: what the contract records about it, and which artifacts both loaders reject."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.commands import NATIVE, Cli

import exporter
from exporter import targets
from exporter.bundle import checksums
from exporter.core import environment, machine_code
from exporter.core.contract_records import Build, Contract, TensorSpec
from exporter.core.errors import ArtifactError, MissingDependency, UsageError
from exporter.core.json_codec import to_json
from exporter.runs import pipeline
from exporter.runs.request import Request

X86 = platform.machine() == "x86_64"
PACKAGE = Path("compile.pt2")
CONTRACT = Contract("toy", (TensorSpec("x", "float32", (2,)),), (), {}, target="compile", torch="2.11.0")


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that fakes a CPU with x86-64-v3 and further flags."""

    def act(*flags: str, without: str = "") -> None:
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        found = frozenset((*machine_code.PORTABLE.isa, *flags)) - {without}
        monkeypatch.setattr(environment, "cpu_flags", lambda: found)

    return act


def test_native_code_may_use_every_instruction_set_of_the_compiler(cpu) -> None:
    cpu("fpu", "avx512f", "amx_tile", "sme", "hypervisor", "aes")
    assert machine_code.native().isa == tuple(sorted((*machine_code.PORTABLE.isa, "avx512f", "amx_tile")))
    assert machine_code.native().level == ""


def test_the_error_names_missing_instruction_sets(cpu) -> None:
    cpu("avx512f")
    machine_code.require(Build(("avx2", "avx512f")), PACKAGE)
    with pytest.raises(ArtifactError, match=r"compile.pt2 was built for avx512_vnni, amx_tile, which this") as raised:
        machine_code.require(Build(("avx512f", "avx512_vnni", "amx_tile")), PACKAGE)
    assert raised.value.remedy == "export it on this machine, or with --portable"
    cpu(without="avx2")
    with pytest.raises(ArtifactError, match="for avx2, which") as raised:
        machine_code.require(machine_code.PORTABLE, PACKAGE)
    assert raised.value.remedy == "export it on this machine"


def test_an_unknown_cpu_rejects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_flags", frozenset)
    machine_code.require(Build(("avx512f",)), PACKAGE)
    assert machine_code.native() == Build()


@pytest.mark.parametrize(
    ("built", "here", "runs"),
    [
        ("8.0", (8, 0), True),
        ("8.0", (8, 9), True),
        ("8.9", (8, 6), False),
        ("8.0", (9, 0), False),
        ("9.0", (9, 0), True),
        ("10.0", (10, 3), False),
        ("12.0", (9, 0), False),
        ("", (9, 0), True),
    ],
)
def test_compute_capability(built: str, here: tuple[int, int], runs: bool) -> None:
    build = Build(capability=built)
    machine_code.require(build, PACKAGE)
    if runs:
        machine_code.require(build, PACKAGE, here)
        return
    with pytest.raises(ArtifactError, match=f"built for compute capability {built}, this GPU has {here[0]}.{here[1]}"):
        machine_code.require(build, PACKAGE, here)


@pytest.mark.parametrize(
    ("made", "cuda", "text"),
    [
        ("2.14.1", "13.0", ""),
        ("2.14.7", "13.9", ""),
        ("2.9.0", "12.8", ""),
        ("2.15.0", "13.0", "built by torch 2.15.0, and this is 2.14.1+cu130"),
        ("", "", ""),
        ("2.14.1", "14.0", "built with CUDA 14.0, and this is 13.0"),
    ],
)
def test_versions_newer_than_the_installed_ones(
    monkeypatch: pytest.MonkeyPatch, made: str, cuda: str, text: str
) -> None:
    monkeypatch.setattr(environment, "version", lambda name: {"torch": "2.14.1+cu130"}[name])
    assert machine_code.newer(replace(CONTRACT, torch=made, build=Build(cuda=cuda)), "13.0") == text


def test_portable_on_an_unsuitable_machine(cli: Cli, cpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu(without="bmi2")
    done = cli("export", "bert", "--portable", "--out", tmp_path / "bundle")
    assert done.code == 2
    assert "--portable builds for x86-64-v3, but this CPU lacks bmi2" in done.err
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UsageError, match="this machine is aarch64"):
        machine_code.require_portable()
    assert not (tmp_path / "bundle").exists()


def test_portable_is_passed_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []

    def run(request: Request, _: object) -> None:
        seen.append(request)
        raise UsageError("enough")

    monkeypatch.setattr(pipeline, "run", run)
    for words in ((), ("--native",), ("--portable",)):
        cli("export", "bert", *words)
    assert [request.portable for request in seen] == [False, False, True]
    assert ["--portable" in request.reproduce("compile") for request in seen] == [False, False, True]


def test_portable_with_a_torch_that_does_not_support_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._inductor import config

    monkeypatch.delattr(config.cpp, "march", raising=False)
    with pytest.raises(MissingDependency, match="can only compile packages for this machine"):
        targets.get("compile").export(None, tmp_path / "c.pt2", targets.Options(portable=True))  # type: ignore[arg-type]


def package(path: Path, build: Build | None) -> Path:
    """Write a package with a library that cannot be loaded."""
    writer = torch._C.PyTorchFileWriter(str(path))
    for name, text in {
        "data/aotinductor/model/broken.so": "",
        "extra/contract.json": to_json(replace(CONTRACT, build=build)),
    }.items():
        writer.write_record(name, text.encode(), len(text))
    writer.write_end_of_file()
    return path


UNKNOWN = Build((*(["avx2"] if X86 else []), "avx1024", "amx_fp2"))
SENTENCE = "was built for avx1024, amx_fp2, which this CPU lacks"


def test_python_rejects_before_loading(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=SENTENCE):
        exporter.open_artifact(package(tmp_path / "c.pt2", UNKNOWN))
    with pytest.raises(ArtifactError, match="not an AOTInductor package that runs here"):
        exporter.open_artifact(package(tmp_path / "old.pt2", None))


def test_python_warns_about_a_later_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "version", lambda _: "2.10.0")
    with (
        pytest.warns(UserWarning, match=r"c.pt2 was built by torch 2.11.0, and this is 2.10.0"),
        pytest.raises(ArtifactError),
    ):
        exporter.open_artifact(package(tmp_path / "c.pt2", Build()))


@pytest.mark.skipif(not NATIVE, reason="exporter-run is not built")
@pytest.mark.parametrize("words", [("run", "--inputs", "in.pt", "--outputs", "out.pt"), ("verify",), ("session",)])
def test_cpp_rejects_before_loading(bundle: Path, words: tuple[str, ...]) -> None:
    command, *options = words
    made = [package(bundle / name, build) for name, build in (("c.pt2", UNKNOWN), ("old.pt2", None))]
    done, old = (run_native(command, path, *options, "--sha256", checksums.of(path)) for path in made)
    assert done.returncode == 1
    assert f"c.pt2 {SENTENCE}: export it on this machine, or with --portable" in done.stdout + done.stderr
    assert "old.pt2: cannot be loaded" in old.stdout + old.stderr


@pytest.mark.skipif(not NATIVE, reason="exporter-run is not built")
def test_cpp_reports_what_the_code_was_built_for(tmp_path: Path) -> None:
    build = replace(UNKNOWN, capability="9.0", cuda="13.0", driver="580.159")
    done = run_native("info", package(tmp_path / "c.pt2", build))
    assert done.returncode == 0
    assert f"built for {' '.join(UNKNOWN.isa)}\n" in done.stdout
    assert "built for compute capability 9.0, with CUDA 13.0 and driver 580.159" in done.stdout
    assert f"cannot run here: it {SENTENCE}" in done.stdout


def run_native(command: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    runner = str(environment.find_runner())
    return subprocess.run([runner, command, str(path), *options], capture_output=True, text=True, check=False)
