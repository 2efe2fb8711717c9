"""`exporter runner` with a simulated CMake, which makes a shell script; `make wheels` compiles a real one."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import Cli

from exporter.core import environment, runners
from exporter.core.errors import ExporterError, JobError, MissingDependency, UsageError
from exporter.core.runners import Torch
from exporter.runs import build_runner

# Writes its arguments to $CALLS, and makes a prefix for --install.
CMAKE = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$1" in
--install)
    mkdir -p "$4/bin" "$4/include/exporter"
    cat > "$4/bin/exporter-run" <<END
#!/bin/sh
: '
built for LibTorch 2.14.1
'
$PROGRAM
END
    chmod +x "$4/bin/exporter-run"
    echo header > "$4/include/exporter/exporter.h" ;;
*) printf "$OUTPUT"; exit ${FAILS:-0} ;;
esac
"""
Calls = Callable[[], list[str]]


def script(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A machine with the simulated CMake and an empty cache; returns the subcommands that were called."""
    tools, log = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    script(tools / "cmake", CMAKE)
    for name in ("ninja", "g++"):
        script(tools / name, "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(log))
    monkeypatch.setenv("PROGRAM", "exit 0")
    monkeypatch.setenv("OUTPUT", "[1/1] compiling\\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EXPORTER_RUN", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "version.py").write_text("__version__ = '2.14.1'\n")
    monkeypatch.setattr(runners, "installed_torch", lambda: Torch(folder, "2.14.1"))
    monkeypatch.setattr(runners, "__file__", str(tmp_path / "site/exporter/core/runners.py"))
    (tmp_path / "site/exporter_cpp").mkdir(parents=True)
    (tmp_path / "site/exporter_cpp/CMakeLists.txt").touch()
    return lambda: [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


ALL = ["-S", "--build", "--install"]


def test_a_runner_is_built_once_and_used(calls: Calls, cli: Cli, tmp_path: Path) -> None:
    done = cli("runner")
    assert (done.code, "no C++ rows   exporter-run is not built" in done.out) == (1, True)
    assert "run `exporter runner build`" in done.out
    done = cli("runner", "build")
    assert (done.code, done.err) == (0, "compiling exporter-run: one or two minutes of CPU time\n")
    program = Path(done.out.strip())
    assert program.is_relative_to(tmp_path / "cache/exporter/runner")
    assert environment.find_runner() == program
    assert cli("runner", "build").out == done.out
    assert calls() == ALL
    assert (cli("runner").code, str(program) in cli("runner", "status").out) == (0, True)
    assert cli("runner", "build", "--again", "-q").code == 0
    assert calls() == ALL * 2
    left = {file.name for file in program.parents[2].iterdir()}
    assert left == {program.parents[1].name, build_runner.LOG, build_runner.LOCK}


def test_the_output_is_shown_on_request(calls: Calls, cli: Cli) -> None:
    assert "[1/1] compiling" in cli("runner", "build", "-v").err


def test_another_runner_that_comes_first_is_named(
    calls: Calls, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPORTER_RUN", str(script(tmp_path / "mine", "#!/bin/sh\necho exporter-run 1\n")))
    done = cli("runner", "build", "-q")
    assert done.err == f"note: {tmp_path}/mine comes first, from EXPORTER_RUN\n"


def test_missing_headers_for_cuda_graphs(
    calls: Calls, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "gpus", lambda: ("H200, 570",))
    assert cli("runner", "build", "-q").err == ""
    (tmp_path / "torch/lib").mkdir()
    (tmp_path / "torch/lib/libtorch_cuda.so").touch()
    assert "without CUDA graphs: `pip install nvidia-cuda-crt`" in cli("runner", "build", "-q").err
    (build_runner.build() / "lib").mkdir()
    (build_runner.build() / "lib/libexporter_cuda.so").touch()
    assert cli("runner", "build", "-q").err == ""


def test_installation(calls: Calls, cli: Cli, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    for _ in range(2):  # the second one replaces the files of the first
        done = cli("runner", "install", "--prefix", prefix)
        assert (done.code, done.out.startswith("2 files")) == (0, True)
    assert sorted(str(file.relative_to(prefix)) for file in prefix.rglob("*") if file.is_file()) == [
        "bin/exporter-run",
        "include/exporter/exporter.h",
    ]
    assert os.access(prefix / "bin/exporter-run", os.X_OK)
    done = cli("runner", "install", "--prefix", "/proc/nowhere")
    assert (done.code, "cannot write to /proc/nowhere" in done.err) == (2, True)


def raised(kind: type[ExporterError]) -> ExporterError:
    with pytest.raises(kind) as caught:
        build_runner.build()
    return caught.value


@pytest.mark.parametrize("name", ["cmake", "ninja"])
def test_a_missing_tool(calls: Calls, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    (tmp_path / "tools" / name).unlink()
    error = raised(MissingDependency)
    assert str(error) == f"exporter-run cannot be built: {name} not found"
    assert error.remedy == "pip install 'cmake>=3.24' ninja nlohmann-json"
    beside = script(tmp_path / "tools" / name, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "tools/python"))
    assert build_runner.tool(name) == str(beside)


def test_a_missing_compiler(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    monkeypatch.setenv("CXX", "my-c++")
    assert str(raised(MissingDependency)).endswith("CXX names my-c++, which is not on the PATH")
    monkeypatch.delenv("CXX")
    (tmp_path / "tools/g++").unlink()
    error = raised(MissingDependency)
    assert (str(error).endswith("no C++ compiler was found"), "install g++" in error.remedy) == (True, True)


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (r"CMake Error at a.cmake:1 (message):\n  nlohmann/json.hpp was not found.\n  Install it\n\nCall Stack\n",
         "nlohmann/json.hpp was not found. Install it"),
        (r"CMake Error: no generator\n", "CMake Error: no generator"),
        (r"[1/2] a.cpp\na.cpp:1:2: error: no type\nb.cpp:1:2: error: other\n", "a.cpp:1:2: error: no type"),
        (r"ninja: stopped\n", "exit code 3"),
    ],
)  # fmt: skip
def test_the_first_error_is_named(calls: Calls, output: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPUT", output)
    monkeypatch.setenv("FAILS", "3")
    error = raised(JobError)
    assert str(error) == f"exporter-run cannot be built: {cause}"
    log = Path(error.remedy.removeprefix("the whole output is in "))
    assert log.read_text() == output.replace(r"\n", "\n")
    assert environment.find_runner() is None
    assert not list(log.parent.glob(".new-*"))


def test_a_program_that_does_not_start_is_not_kept(
    calls: Calls, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROGRAM", "echo libc10.so is missing >&2; exit 127")
    error = raised(JobError)
    assert str(error) == "exporter-run was built, but does not start: libc10.so is missing"
    assert environment.find_runner() is None
    monkeypatch.setenv("EXPORTER_RUN", str(script(tmp_path / "mine", "#!/bin/sh\nexit 3")))
    done = cli("runner")
    assert (done.code, "exit code 3" in done.out, "correct EXPORTER_RUN" in done.out) == (1, True, True)
    assert "No such file or directory" in build_runner.starts(tmp_path / "nowhere")


def test_an_interrupt_ends_the_build(calls: Calls, tmp_path: Path) -> None:
    script(
        tmp_path / "tools/cmake",
        f"#!/bin/sh\ntrap 'touch {tmp_path}/ended; exit 1' TERM\necho begun\nsleep 60 & wait\n",
    )

    def listen(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_runner.build(listen)
    assert (tmp_path / "ended").exists()
    assert environment.find_runner() is None
    assert not list((tmp_path / "cache/exporter/runner").glob(".new-*"))


def test_builds_wait_for_each_other(calls: Calls, tmp_path: Path) -> None:
    """The second build finds what the first one made, and removes what a killed one left."""
    root = tmp_path / "cache/exporter/runner"
    (root / ".new-killed/build").mkdir(parents=True)
    said: list[str] = []
    waits = threading.Event()

    def listen(line: str) -> None:
        said.append(line)
        waits.set()

    with (root / build_runner.LOCK).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        threads = [threading.Thread(target=build_runner.build, args=(listen,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert waits.wait(60)
        assert calls() == []
    for thread in threads:
        thread.join(60)
    assert said[0] == "waiting for another build"
    assert calls() == ALL
    assert not (root / ".new-killed").exists()


def test_superseded_entries_are_removed(calls: Calls, tmp_path: Path) -> None:
    """Those of the same torch and sources, and of a torch that was replaced; others are still in use."""
    root = tmp_path / "cache/exporter/runner"
    other = tmp_path / "other-torch"
    other.mkdir()
    (other / "version.py").write_text("__version__ = '2.13.0'\n")
    mine, site = str(tmp_path / "torch"), str(tmp_path / "site/exporter_cpp")
    entries = {
        "superseded": {"torch": "2.14.1", "folder": mine, "sources": site},
        "replaced": {"torch": "2.12.0", "folder": str(other), "sources": "/elsewhere"},
        "removed": {"torch": "2.12.0", "folder": "/nowhere/torch", "sources": site},
        "other-torch": {"torch": "2.13.0", "folder": str(other), "sources": site},
        "other-sources": {"torch": "2.14.1", "folder": mine, "sources": "/elsewhere"},
    }
    for name, record in entries.items():
        (root / name).mkdir(parents=True)
        (root / name / build_runner.RECORD).write_text(json.dumps(record))
    (root / "not-ours").mkdir()
    (root / "not-ours" / build_runner.RECORD).write_text("[]")
    made = build_runner.build()
    left = {place.name for place in root.iterdir() if place.is_dir()}
    assert left == {made.name, "other-torch", "other-sources", "not-ours"}


def test_a_cache_that_cannot_be_written(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").touch()
    error = raised(UsageError)
    assert (str(tmp_path / "cache") in str(error), "set XDG_CACHE_HOME" in error.remedy) == (True, True)
    monkeypatch.setattr(runners, "cache", lambda: None)
    assert "no home directory" in str(raised(UsageError))


def test_an_installation_that_lacks_something(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site/exporter_cpp/CMakeLists.txt").unlink()
    assert "lacks the C++ sources" in str(raised(MissingDependency))
    monkeypatch.setattr(runners, "installed_torch", lambda: None)
    assert raised(MissingDependency).remedy == "pip install torch"


def test_no_more_compilers_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_cpus", lambda: 64)
    for free, jobs in ((10**12, 64), (9 * 10**9, 4), (10**9, 1)):
        monkeypatch.setattr("exporter.core.memory.free", lambda free=free: free)
        assert build_runner._jobs() == jobs


def test_the_library_for_cuda_graphs_needs_no_symbol_of_the_program() -> None:
    """It can be loaded without a GPU."""
    runner = environment.find_runner()
    if runner is None or not (library := runner.with_name("libexporter_cuda.so")).is_file():
        pytest.skip("exporter-run is not built with CUDA graphs")
    load = [sys.executable, "-c", f"import ctypes, os; ctypes.CDLL({str(library)!r}, os.RTLD_NOW)"]
    done = subprocess.run(load, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
