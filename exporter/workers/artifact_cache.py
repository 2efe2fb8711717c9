"""A cache of artifacts, because an unchanged program takes as long to translate or compile as a new one.

An artifact is taken only if the exported program, weights included, is the same byte for byte, and so are the settings,
exporter's own source, and what else the result depends on: versions, compiler, CPU and GPU. It is then checked like a
new one. Artifacts that were made from more than the program are not kept, such as those that used samples. Nor are
those for which a target that reads the exported program needed the module too.

`exporter.workers.reference_cache` keeps the golden's references here too.

The cache is a folder in inductor's (TORCHINDUCTOR_CACHE_DIR). EXPORTER_CACHE_GB limits it, and 0 disables it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exporter
from exporter import targets
from exporter.core import environment
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import from_json, to_json
from exporter.core.json_schema import described
from exporter.core.option import settings
from exporter.model.capture import Program
from exporter.targets import Exported, Options

RECORD = "record.json"
NOTE = "built earlier from the same program with the same settings"
# Variables that change what compilers do. Exporter sets LIBRARY_PATH itself, after torch.
PREFIXES = (
    *(
        "TORCHINDUCTOR_",
        "AOT_INDUCTOR_",
        "TORCH_",
        "TRITON_",
        "ATEN_",
        "ONEDNN_",
        "DNNL_",
        "MKL_",
        "CUDA_",
        "CXX",
        "CC",
    ),
    *("CC", "CFLAGS", "CXXFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LD_PRELOAD"),
)


@dataclass(frozen=True)
class Built:
    """What is kept beside an artifact: the result of its export, its time, and the hash of each file."""

    exported: Exported = described("The result of the export.")
    seconds: float = described("The time of the export.")
    sha256: dict[str, str] = described("The hash of each file, by name.")


def _root() -> Path:
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "artifacts"


def key_of(program: Program, target: str, options: Options) -> str:
    """Return the key of an artifact; "" if it cannot be kept."""
    file = program.exported_file
    route = targets.get(target)
    shared = file is not None and file.is_file() and not program.entries and _describes(program, target, options)
    if not (is_allowed(options) and shared and not program.keeps_state):
        return ""
    used = targets.distributions((target,), optional=True)
    facts = {
        "program": hash_of(file) if file else "",
        "contract": json.loads(to_json(program.contract)),
        "options": {s.name: getattr(options, s.name) for s in settings(options) if s.option.effect},
        "variant": [target, options.variant, options.precision],
        "libraries": [hash_of(Path(library)) for library in options.ops_libs],
        "source": _sources(Path(vars(route)["__file__"])),
        "profiled": options.profiled,
        "versions": {one: environment.version(one) for one in used},
        "compiler": environment.compiler_identity(),
        **surroundings(options),
    }
    return digest(facts)


def is_allowed(options: Options) -> bool:
    """Return whether this run may use the cache."""
    return bool(environment.cache_limit() and options.reuse)


def surroundings(options: Options) -> dict[str, Any]:
    """Return what every result depends on: exporter's own source, versions, the machine and variables."""
    return {
        "device": [options.device, options.threads],
        "exporter": _sources(Path(exporter.__file__)),
        "installed": {one: environment.version(one) for one in environment.DISTRIBUTIONS},
        "machine": [environment.cpu_name(), sorted(environment.cpu_flags())],
        "gpus": environment.gpus() if options.device != "cpu" else (),
        "python": sys.version,
        "variables": {name: value for name, value in sorted(os.environ.items()) if _matters(name)},
    }


def digest(facts: dict[str, Any]) -> str:
    """Return the key that stands for all of these facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _describes(program: Program, target: str, options: Options) -> bool:
    """Return whether the exported program says all that the artifact is made from.

    So it does for a target that records the module's operators, unless the artifact is promised for sizes that the
    program excludes, or layers are replaced by their class.
    """
    if targets.get(target).needs_program:
        return True
    recorded = targets.facts(target).records_calls and options.precision != "int8"
    return recorded and next(program.outside(), None) is None


def _matters(name: str) -> bool:
    return name.startswith(PREFIXES) and name != "TORCHINDUCTOR_CACHE_DIR"


def hash_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@functools.cache
def _sources(module: Path) -> str:
    """Return a hash of the sources in a module's folder, which a development tree changes without another version."""
    found = hashlib.sha256()
    for file in sorted(module.parent.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def take(key: str, path: Path) -> tuple[Exported, float] | None:
    """Copy the artifact of this key to `path`; return its record and the time that building it took."""
    place = _root() / key
    try:
        built = from_json(Built, (place / RECORD).read_bytes())
        for name, expected in built.sha256.items():
            copy = path.with_name(name)
            shutil.copyfile(place / name, copy)
            if hash_of(copy) != expected:
                raise ArtifactError(f"{place / name} was altered", "")
    except (OSError, ArtifactError):  # there is none, or it is broken
        shutil.rmtree(place, ignore_errors=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(place)  # the least recently used are removed first
    return dataclasses.replace(built.exported, notes=(*built.exported.notes, NOTE)), built.seconds


def forget(key: str) -> None:
    """Remove what is kept with this key."""
    shutil.rmtree(_root() / key, ignore_errors=True)


def keep(key: str, path: Path, exported: Exported, seconds: float) -> None:
    """Put an artifact into the cache, unless it would take more than half of it.

    A full disk only means that it is not kept.
    """
    files = [path.with_name(name) for name in (path.name, *exported.companions)]
    size, limit = sum(file.stat().st_size for file in files), environment.cache_limit()
    root = _root()
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if size > limit / 2 or size > shutil.disk_usage(root).free / 4:
            return
        _make_room(root, limit - size)
        partial = Path(tempfile.mkdtemp(dir=root, prefix="partial-"))
        try:
            for file in files:
                _link(file, partial / file.name)
            sums = {file.name: hash_of(partial / file.name) for file in files}
            (partial / RECORD).write_text(to_json(Built(exported, seconds, sums)), encoding="utf-8")
            partial.rename(root / key)  # fails if another process was faster
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _link(file: Path, other: Path) -> None:
    """Make a hard link, or a copy where that is not possible, as between two file systems.

    If somebody writes to the file in the bundle, the one in the cache no longer has its recorded hash and is not taken.
    """
    try:
        other.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, other)


def _make_room(root: Path, limit: float) -> None:
    """Remove the least recently used artifacts until the cache is within a limit, in bytes."""
    used = sorted(_sizes(root), key=lambda one: one[1])
    total = sum(size for _, _, size in used)
    for place, _, size in used:
        if total <= limit:
            return
        shutil.rmtree(place, ignore_errors=True)
        total -= size


def _sizes(root: Path) -> Iterator[tuple[Path, float, int]]:
    """Yield each folder, the time of its last use, and its size in bytes."""
    for place in root.iterdir():
        with contextlib.suppress(OSError):
            yield place, place.stat().st_mtime, sum(file.stat().st_size for file in place.iterdir())
