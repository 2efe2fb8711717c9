"""Compute the key of a step: a hash of everything that its bundle depends on. A step with an unchanged key is skipped.

The hash covers the recipe's code (the file and the modules that it imports from its folder or package), the files
beside this code that it names in a string, the files of weights and inputs, the options, the versions of Python,
exporter, the libraries and the C++ compiler, exporter-run, and the machine. It does not cover the paths of files,
except for hf:FOLDER, or the gates, which are evaluated on every run. It cannot detect that a hub changes the model
behind a name (pin the revision with hf:ID@REVISION), nor what a recipe reads from a path that it computes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from modulefinder import ModuleFinder
from pathlib import Path
from types import CodeType
from typing import Any

from exporter import targets
from exporter._version import __version__
from exporter.bundle import checksums, provenance
from exporter.core import environment
from exporter.core.errors import ExporterError, UsageError
from exporter.core.option import pick, settings
from exporter.core.settings import SizeSettings
from exporter.model.recipes import Source
from exporter.runs.request import Request

LIBRARIES = ("timm",)  # those that the manifest does not list
IMPORTERS = {"import_module", "__import__"}
PACKAGE = 5  # ModuleFinder's kind of a package


def key(request: Request, only: Collection[Path] | None = None) -> str:
    """Return the hash, in hex, which covers no other files than `only` if these are given.

    Raises UsageError if the permissions of a file forbid reading it.
    """
    source = request.source
    facts = {
        "request": {s.name: getattr(request, s.name) for s in settings(request) if s.option.effect},
        "sizes": dataclasses.asdict(pick(SizeSettings, request)),
        "made": [request.model, request.device, request.variants, request.least_runs],
        "source": [
            *(*_named(source), source.task, source.allow_partial),
            *(sorted(map(str, source.dims)), sorted(source.leave_out)),
        ],
        "files": [[_hash(path) for path in files if only is None or path in only] for files in _files(request)],
        "environment": _environment(_targets(request)),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def paths(request: Request) -> frozenset[Path]:
    """Return the files that the step depends on."""
    return frozenset(path for files in _files(request) for path in files)


def is_still(request: Request, before: str, only: Collection[Path] | None = None) -> bool:
    """Return whether the key is the one computed before, perhaps hours ago.

    With `only`, the files that there were then, a file that the recipe names and has made since then is no change.
    """
    _environment.cache_clear()
    try:
        return key(request, only) == before
    except (ExporterError, OSError):
        return False


def _named(source: Source) -> tuple[str, str, str]:
    """Return what identifies the model besides its files: its library counts, the path of a file does not."""
    library = source.place if source.kind == "source" else ""
    return source.kind, library, "" if library == "saved" else source.attribute


def files(request: Request) -> dict[str, str]:
    """Return the hash of each file that the step depends on, by path.

    Raises OSError if a file is missing, and UsageError if its permissions forbid reading it.
    """
    return {str(path): _hash(path) for files in _files(request) for path in files}


def versions(request: Request) -> dict[str, str]:
    """Return the versions of Python, exporter and the libraries, by name.

    The libraries include the distributions that the request's targets require, and those that ship the targets.
    """
    used = _targets(request)
    names = {"python", "exporter", *environment.DISTRIBUTIONS, *_libraries(used)}
    return {name: fact for name, fact in _environment(used).items() if name in names}


def _targets(request: Request) -> tuple[str, ...]:
    return tuple(dict.fromkeys(variant.target for variant in request.variants))


def _hash(path: Path) -> str:
    try:
        return _digest(path, provenance.stamp(path))
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "change its permissions or owner") from error


@functools.cache
def _digest(path: Path, stamp: tuple[int, ...]) -> str:
    """Return a file's hash. `stamp` is part of the cache key only."""
    return checksums.of(path)


def _files(request: Request) -> Iterator[list[Path]]:
    """Yield the files that the step depends on, one list for each purpose."""
    source = request.source
    yield _model_files(source)
    yield provenance.shards(Path(source.checkpoint)) if source.checkpoint else []
    yield [Path(source.inputs_file)] if source.inputs_file else []
    yield [Path(file) for file in request.ops_libs if Path(file).is_file()]
    runner = environment.find_runner()
    yield [runner] if runner else []


def _model_files(source: Source) -> list[Path]:
    """Return the recipe's code, the saved program, or the files in the model's folder."""
    if source.kind == "source" and source.place == "saved":
        return [Path(source.attribute)]
    if source.kind == "source":
        folder = Path(source.attribute).expanduser()
        return sorted(file for file in folder.rglob("*") if file.is_file()) if source.place == "hf" else []
    file = provenance.module_file(source.place) if source.kind == "name" else source.place
    return _code(Path(file)) if file else []  # the step reports a missing module


class _Finder(ModuleFinder):
    """Follows imports within one folder and its package, and ignores what else is in `top`, the package's parent.

    In a module that calls import_module or __import__, every string that is a module's name counts as an import.
    `named` holds the files that strings name, absolutely or relative to the folder of their module.
    """

    _safe_import_hook: Callable[..., None]  # records a module that is not found instead of raising ImportError

    def __init__(self, folder: Path, top: Path) -> None:
        super().__init__([str(folder)])
        self.package, self.top = folder.relative_to(top).parts[:1], str(top)
        self.named: set[Path] = set()

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Find the package itself in `top`, and anything else as ModuleFinder does."""
        if path is None and (name,) == self.package:
            path = [self.top]
        try:
            return super().find_module(name, path, parent)
        except (AttributeError, ImportError, TypeError):  # which one depends on the version of Python
            folders = (Path(place) / name for place in (self.path if path is None else path))
            if folder := next((folder for folder in folders if folder.is_dir()), None):
                return None, str(folder), ("", "", PACKAGE)
            raise

    def load_package(self, fqname: str, pathname: str) -> Any:
        """Return a package, also one without __init__.py, which ModuleFinder does not know."""
        if (Path(pathname) / "__init__.py").is_file():
            return super().load_package(fqname, pathname)
        package: Any = self.add_module(fqname)
        package.__path__ = [pathname]
        return package

    def scan_code(self, co: CodeType, m: Any) -> None:
        """Follow the imports of a module, or of a function in it."""
        super().scan_code(co, m)
        if co.co_name != "<module>":
            return
        names, strings = _read(co)
        files = (os.path.join(os.path.dirname(m.__file__), text) for text in strings)  # noqa: PTH118, PTH120
        self.named |= {Path(file) for file in files if _is_kept_file(file)}
        for text in strings if names & IMPORTERS else ():
            name = text.lstrip(".")
            if all(part.isidentifier() for part in name.split(".")):
                self._safe_import_hook(name, m, None, level=len(text) - len(name))


def _is_kept_file(path: str) -> bool:
    """Return whether a path names a file that can be read and that a file system keeps, unlike /proc."""
    transient = path.startswith(("/proc/", "/sys/", "/dev/"))
    # Path.is_file raises OSError for long strings
    return not transient and os.path.isfile(path) and os.access(path, os.R_OK)  # noqa: PTH113


def _read(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names that code uses, and the strings in it, both with those of its functions."""
    names, strings, constants = set(code.co_names), set(), list(code.co_consts)
    while constants:
        constant = constants.pop()
        if isinstance(constant, str):
            strings.add(constant)
        elif isinstance(constant, tuple | frozenset):
            constants += constant
        elif isinstance(constant, CodeType):
            names.update(constant.co_names)
            constants += constant.co_consts
    return names, strings


def _code(path: Path) -> list[Path]:
    """Return a Python file, all modules of its folder or package that it imports, directly or not, and files they name.

    This runs nothing.
    """
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    *packages, _ = path.relative_to(top).parts
    finder = _Finder(path.parent, top)
    try:
        if packages:
            finder.import_hook(".".join((*packages, path.stem)))
        else:
            finder.run_script(str(path))
    except Exception:  # the file does not compile; the step reports it
        return [path]
    found = (getattr(module, "__file__", None) for module in finder.modules.values())
    return sorted({path, *map(Path, filter(None, found)), *finder.named})


@functools.cache
def _environment(used: tuple[str, ...]) -> dict[str, str]:
    """Return those facts about the environment that can affect the outcome with these targets."""
    found = environment.describe(_libraries(used)) | {"exporter": __version__}
    found["compiler"] = environment.compiler_identity()  # the manifest has its path alone
    return {name: fact for name, fact in found.items() if name not in ("os", "cpus", "exporter-run")}


def _libraries(used: tuple[str, ...]) -> tuple[str, ...]:
    """Return the distributions that can affect the artifacts of these targets."""
    return (*LIBRARIES, *targets.distributions(used, optional=True))
