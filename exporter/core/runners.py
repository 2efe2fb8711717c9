"""Find `exporter-run`, tell for which torch it was built, and call it. This never imports torch.

A runner is used only if it was built for the release of torch that is installed here. It may come from, in this order:
$EXPORTER_RUN, which excludes all others; the build folder of this checkout; the wheel of exporter, if that contains a
compiled runner; the cache, which `exporter runner build` fills; the PATH.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from exporter._version import __version__
from exporter.core.errors import ArtifactError

NAME = "exporter-run"
BUILD = "exporter runner build"
REMEDY = f"run `{BUILD}`, or set EXPORTER_RUN to its path"
NO_COMPILER = f"install g++, then run `{BUILD}`"
MARK = b"\nbuilt for LibTorch "  # in the program, before the release and a line end; see cpp/src/version.cpp
PACKAGE = "exporter_cpp"  # the installed name of cpp/
COMPILED = ("CMakeLists.txt", "apps", "cmake", "include", "src", "third_party/CLI11")  # of cpp/
# Where a runner may come from, and what to do about one that cannot be used.
EXPLICIT, CHECKOUT, WHEEL, CACHE, PATH = "EXPORTER_RUN", "this checkout", "the wheel of exporter", f"`{BUILD}`", "PATH"
REMEDIES = {
    EXPLICIT: "correct EXPORTER_RUN, or unset it",
    CHECKOUT: "run `make cpp`",
    WHEEL: f"run `{BUILD}`",
    CACHE: f"run `{BUILD} --again`",
    PATH: f"run `{BUILD}`",
}


@dataclass(frozen=True)
class Torch:
    """An installed torch: the folder of its package, and its version with the local part, such as 2.14.1+cu130."""

    folder: Path
    version: str


@dataclass(frozen=True)
class Runner:
    """A program, where it was found, the torch that it was built for ("" if unknown), and why it is not used."""

    path: Path
    origin: str
    torch: str = ""
    refused: str = ""

    @property
    def remedy(self) -> str:
        """What to do if it cannot be used."""
        return REMEDIES[self.origin]


@dataclass(frozen=True)
class Found:
    """The runner that is used, if any, and those that were found before it and refused."""

    used: Runner | None
    refused: tuple[Runner, ...] = ()

    @property
    def reason(self) -> str:
        """Why no runner is used; "" if one is."""
        if self.used:
            return ""
        return self.refused[0].refused if self.refused else f"{NAME} is not built"

    def remedy(self, compiler: bool) -> str:
        """What to do if no runner is used; `compiler` says whether there is a C++ compiler."""
        if not compiler and not (self.refused and self.refused[0].origin == EXPLICIT):
            return NO_COMPILER
        return self.refused[0].remedy if self.refused else REMEDY


def find() -> Found:
    """Return the first runner that fits the torch installed here."""
    torch = installed_torch()
    refused: list[Runner] = []
    for runner in _candidates(torch):
        if not runner.refused:
            return Found(runner, tuple(refused))
        refused.append(runner)
    return Found(None, tuple(refused))


def _candidates(torch: Torch | None) -> Iterator[Runner]:
    named = os.environ.get(EXPLICIT)
    if named is not None:
        yield _examined(Path(named), EXPLICIT, torch)
        return
    source = sources()
    places = [
        (Path(__file__).parents[2] / "build/cpp" / NAME, CHECKOUT),
        *([(source / "bin" / NAME, WHEEL)] if source else []),
    ]
    if torch and source and (root := cache()):
        places.append((root / key(torch, source) / "bin" / NAME, CACHE))
    if on_path := shutil.which(NAME):
        places.append((Path(on_path), PATH))
    yield from (_examined(path, origin, torch) for path, origin in places if os.access(path, os.X_OK))


def _examined(path: Path, origin: str, torch: Torch | None) -> Runner:
    if not (path.is_file() and os.access(path, os.X_OK)):
        return Runner(path, origin, refused=f"{origin} names {path}, which is not a program")
    built, here = built_for(path), torch.version if torch else ""
    if not built and origin == EXPLICIT and _is_another_program(path, path.stat().st_mtime_ns):
        return Runner(path, origin, refused=f"{origin} names {path}, which is not {NAME}")
    # EXPORTER_RUN may name a script that starts the runner.
    fits = not here or _release(built) == _release(here) or (not built and origin == EXPLICIT)
    what = f"for torch {built}, and this is torch {here}" if built else "by another release of exporter"
    return Runner(path, origin, built, "" if fits else f"{path} was built {what}")


@functools.cache
def _is_another_program(path: Path, changed: int) -> bool:
    """Return whether a program's answer to --version is not that of exporter-run; False if it fails.

    `changed` is part of the cache key only.
    """
    words = (str(path.absolute()), "--version")
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and not done.stdout.startswith(f"{NAME} ")


def _release(version: str) -> str:
    """Return a version without its local part, which tells builds of one release apart."""
    return version.partition("+")[0]


def built_for(path: Path) -> str:
    """Return the version of torch that a runner was built for; "" if the file does not tell, or cannot be read."""
    try:
        status = path.stat()
        return _built_for(path, status.st_mtime_ns, status.st_size)
    except OSError:  # a program may be executable but not readable
        return ""


@functools.cache
def _built_for(path: Path, changed: int, size: int) -> str:
    """Read the file. `changed` and `size` are part of the cache key only."""
    _, mark, rest = path.read_bytes().partition(MARK)
    return rest.partition(b"\n")[0][:100].decode("ascii", "replace") if mark else ""


def installed_torch() -> Torch | None:
    """Return the torch that this interpreter would import, without importing it; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return Torch(folder, version_of(folder))


def version_of(folder: Path) -> str:
    """Return the version in the folder of a torch package; "" if there is none."""
    try:
        lines = (folder / "version.py").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = (line.partition("=")[2] for line in lines if line.startswith("__version__"))
    return next(values, "").strip(" '\"")


def sources() -> Path | None:
    """Return the folder of the C++ sources: in the installed package, or in the checkout."""
    top = Path(__file__).parents[2]
    return next((top / name for name in (PACKAGE, "cpp") if (top / name / "CMakeLists.txt").is_file()), None)


def cache() -> Path | None:
    """Return the folder with the runners that `exporter runner build` makes; None without a home directory."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = named if named.is_absolute() else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111, which may raise
    return home / "exporter" / "runner" if home.is_absolute() else None


def key(torch: Torch, source: Path) -> str:
    """Return the name in the cache of the runner for this torch and these sources.

    It depends on torch's version and folder (the programs link to it), on the machine and its C library (the cache may
    be shared), and on the sources. It does not depend on the compiler: a runner is kept when that is upgraded.
    """
    facts = (torch.version, str(torch.folder), platform.machine(), *platform.libc_ver(), _digest(source))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


@functools.cache
def _digest(source: Path) -> str:
    """Return the hash of everything in the folder that is compiled, and of exporter's version."""
    total = hashlib.sha256(__version__.encode())
    for place in (source / name for name in COMPILED):
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file():
                total.update(f"\n{file.relative_to(source)}\n".encode() + file.read_bytes())
    return total.hexdigest()


def call(words: Sequence[str], timeout: float) -> str:
    """Run exporter-run to its end and return what it prints.

    Raises ArtifactError, with what it says, if it fails or takes longer than `timeout` seconds.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(f"{NAME} did not end within {timeout:.0f} s", "raise --timeout") from error
    except OSError as error:
        raise ArtifactError(f"{NAME} cannot be started: {error.strerror}", REMEDY) from error
    if done.returncode < 0:
        raise ArtifactError(f"{NAME} was ended by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ArtifactError(lines[0].removeprefix("Error: ") if lines else f"{NAME} ended with {done.returncode}")
    return done.stdout
