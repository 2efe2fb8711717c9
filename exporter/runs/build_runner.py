"""Compile `exporter-run` and its library against the installed torch, into the cache that `core/runners.py` searches.

An entry of the cache is what `cmake --install` makes: bin/exporter-run, the libraries, headers and the CMake package.
It appears in one step when it is complete. Builds of one user wait for each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from exporter.core import environment, filesystem, memory, runners
from exporter.core.errors import JobError, MissingDependency, UsageError
from exporter.core.runners import Torch

RECORD = "built.json"  # in an entry: for which torch and from which sources it was built
LOG, LOCK, NEW = "build.log", "lock", ".new-"
JOB_BYTES = 2 * 10**9  # memory of one compiler at most
STARTS_S = 60.0  # time limit for starting a program once
CANNOT = f"{runners.NAME} cannot be built"
HEADERS = f"it runs without CUDA graphs: `pip install nvidia-cuda-crt`, then `{runners.BUILD} --again`"
PIP = "pip install 'cmake>=3.24' ninja nlohmann-json"
LOG_LINES = 50  # that an error carries
Listen = Callable[[str], None]  # receives each line of output


@dataclass(frozen=True)
class Tools:
    """The paths of the programs that build a runner."""

    compiler: str
    cmake: str
    ninja: str


def tool(program: str) -> str | None:
    """Find a program on the PATH, or beside this interpreter: in a virtual environment that is not activated."""
    beside = Path(sys.executable).with_name(program)
    return shutil.which(program) or (str(beside) if os.access(beside, os.X_OK) else None)


def tools() -> Tools:
    """Find the compiler, CMake and Ninja. Raises MissingDependency with what to install."""
    compiler = environment.compiler()
    if compiler is None:
        named = os.environ.get("CXX")
        cause = f"CXX names {named}, which is not on the PATH" if named else "no C++ compiler was found"
        raise MissingDependency(f"{CANNOT}: {cause}", "install g++, or set CXX to a C++20 compiler")
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None or ninja is None:
        missing = [name for name, path in (("cmake", cmake), ("ninja", ninja)) if path is None]
        raise MissingDependency(f"{CANNOT}: {' and '.join(missing)} not found", PIP)
    return Tools(compiler, cmake, ninja)


def build(listen: Listen = lambda line: None, again: bool = False) -> Path:
    """Return the folder of the runner for the installed torch, after compiling it if the cache has none (or `again`).

    Raises MissingDependency without torch or a tool, UsageError if the cache cannot be written, and JobError, which
    names the log, if the sources cannot be compiled.
    """
    torch, source = runners.installed_torch(), runners.sources()
    if torch is None:
        raise MissingDependency("torch is not installed", "pip install torch")
    if source is None:
        raise MissingDependency("this installation of exporter lacks the C++ sources", "reinstall exporter")
    place = _root() / runners.key(torch, source)
    try:
        with _locked(place.parent, listen):
            if again or not _complete(place):
                _fill(place, torch, source, listen)
    except OSError as error:
        raise _cannot_write(error, place.parent) from error
    return place


def install(prefix: Path, listen: Listen = lambda line: None) -> list[Path]:
    """Copy the program, the library, its headers and the CMake package to a prefix, and return the files.

    They are built first if the cache lacks them. Raises as `build` does, and UsageError if it cannot write there.
    """
    place = build(listen)
    try:
        return [_copied(file, prefix / file.relative_to(place)) for file in _files(place)]
    except OSError as error:
        remedy = "give another --prefix, or change its permissions"
        raise UsageError(f"cannot write to {error.filename or prefix}: {error.strerror}", remedy) from error


def lacks_graphs(place: Path) -> bool:
    """Return whether there is a GPU and the runner was built without CUDA's headers, so it cannot capture graphs."""
    torch = runners.installed_torch()
    for_cuda = torch is not None and (torch.folder / "lib/libtorch_cuda.so").is_file()
    return for_cuda and bool(environment.gpus()) and not (place / "lib/libexporter_cuda.so").is_file()


def starts(program: Path) -> str:
    """Return why the program does not start here; "" if it does."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=STARTS_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


def _root() -> Path:
    root = runners.cache()
    if root is None:
        raise UsageError("there is no home directory for the cache", "set XDG_CACHE_HOME to a folder")
    return root


def _cannot_write(error: OSError, root: Path) -> UsageError:
    cause = str(filesystem.error(error, root))
    return UsageError(cause, "free some space or change its permissions, or set XDG_CACHE_HOME to another folder")


@contextmanager
def _locked(root: Path, listen: Listen) -> Iterator[None]:
    """Wait for other builds, then remove what killed ones left."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / LOCK).open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            listen("waiting for another build")
            fcntl.flock(held, fcntl.LOCK_EX)
        for left in root.glob(f"{NEW}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _complete(place: Path) -> bool:
    return os.access(place / "bin" / runners.NAME, os.X_OK)


def _fill(place: Path, torch: Torch, source: Path, listen: Listen) -> None:
    """Compile in a temporary folder of the cache, check the program, and move the result to `place`."""
    found, log = tools(), place.parent / LOG
    with tempfile.TemporaryDirectory(prefix=NEW, dir=place.parent) as scratch:
        tree, new = Path(scratch) / "build", Path(scratch) / "new"
        commands = (
            [found.cmake, "-S", str(source), "-B", str(tree), *settings(found, torch)],
            [found.cmake, "--build", str(tree), "--parallel", str(_jobs())],
            [found.cmake, "--install", str(tree), "--prefix", str(new), "--strip"],
        )
        with log.open("w", encoding="utf-8") as output:
            for command in commands:
                _run(command, output, listen)
        if why := starts(new / "bin" / runners.NAME):
            raise JobError(f"{runners.NAME} was built, but does not start: {why}", f"the whole output is in {log}")
        record = {"torch": torch.version, "folder": str(torch.folder), "sources": str(source)}
        (new / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
        if place.exists():
            place.rename(Path(scratch) / "old")
        new.rename(place)
    _remove_superseded(place, record)


def settings(found: Tools, torch: Torch) -> list[str]:
    """Return the options of CMake. $CXXFLAGS and $CMAKE_BUILD_TYPE (default: Release) apply as in any project."""
    return [
        "-GNinja",
        f"-DCMAKE_MAKE_PROGRAM={found.ninja}",
        f"-DCMAKE_CXX_COMPILER={found.compiler}",
        f"-DLIBTORCH_ROOT={torch.folder}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        "-DCMAKE_INSTALL_LIBDIR=lib",
        "-DCMAKE_UNITY_BUILD=ON",
        "-DEXPORTER_TESTS=OFF",
        "-DEXPORTER_WERROR=OFF",
    ]


def _jobs() -> int:
    """Return how many compilers the cores and the free memory allow."""
    return max(1, min(environment.usable_cpus(), memory.free() // JOB_BYTES))


def _run(command: Sequence[str], log: IO[str], listen: Listen) -> None:
    """Run a command, copying its output to the log. Raises JobError with the first error in it."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                lines.append(line.rstrip())
                listen(lines[-1])
        except BaseException:  # an interrupt; Ninja ends the compilers, which are not in its process group
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if process.returncode:
        cause = _cause(lines) or f"exit code {process.returncode}"
        remedy = f"the whole output is in {log.name}"
        raise JobError(f"{CANNOT}: {cause}", remedy, "\n".join(lines[-LOG_LINES:]))


def _cause(lines: Sequence[str]) -> str:
    """Return the first error of CMake or of the compiler in the output; "" if there is none."""
    for index, line in enumerate(lines):
        if line.startswith("CMake Error"):
            return " ".join(_paragraph(lines[index + 1 :])) or line
        if "error: " in line:
            return line.strip()
    return ""


def _paragraph(lines: Iterable[str]) -> Iterator[str]:
    """Yield the indented lines at the beginning."""
    for line in lines:
        if not line.startswith(" "):
            return
        yield line.strip()


def _remove_superseded(place: Path, record: dict[str, str]) -> None:
    """Remove entries from earlier sources in the same place, and those whose torch was replaced or removed."""
    for other in place.parent.glob(f"*/{RECORD}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            made = json.loads(other.read_text(encoding="utf-8"))
            gone = runners.version_of(Path(made["folder"])) != made["torch"]
            replaced = (made["folder"], made["sources"]) == (record["folder"], record["sources"])
            if other.parent != place and (gone or replaced):
                shutil.rmtree(other.parent)


def _files(place: Path) -> list[Path]:
    return sorted(file for file in place.rglob("*") if file.is_file() and file != place / RECORD)


def _copied(file: Path, to: Path) -> Path:
    """Copy a file in one step, so that a program in its place may be running."""
    to.parent.mkdir(parents=True, exist_ok=True)
    new = filesystem.own_new(to)
    try:
        shutil.copy2(file, new)
        new.replace(to)
    finally:
        new.unlink(missing_ok=True)
    return to
