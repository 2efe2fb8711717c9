"""The key of a step: a hash over all that its bundle depends on. A step whose key is as it was need not be made again.

That is the recipe's code (the file and the modules beside it or in its package that it imports), files of weights and
inputs, the options, the versions of Python, exporter and libraries, exporter-run, and the machine. Where files lie does
not count, but for hf:FOLDER; nor do gates, which are judged anew each time. What a hub changes behind a name is not
seen: pin it, hf:ID@REVISION.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from exporter import targets
from exporter._version import __version__
from exporter.bundle import checksums, provenance
from exporter.core import environment
from exporter.core.errors import UsageError
from exporter.core.option import pick, settings
from exporter.core.settings import SizeSettings
from exporter.model.recipes import Source
from exporter.runs.request import Request

LIBRARIES = ("timm",)  # that the manifest does not name


def key(request: Request) -> str:
    """The hash, in hex. UsageError for a file that may not be read."""
    source = request.source
    facts = {
        "request": {s.name: getattr(request, s.name) for s in settings(request) if s.option.effect},
        "sizes": dataclasses.asdict(pick(SizeSettings, request)),
        "made": [request.model, request.device, request.variants, request.least_runs],
        "source": [
            *(*_named(source), source.task, source.allow_partial),
            *(sorted(map(str, source.dims)), sorted(source.leave_out)),
        ],
        "files": [[_hash(path) for path in files] for files in _files(request)],
        "environment": _environment(_targets(request)),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _named(source: Source) -> tuple[str, str, str]:
    """What names the model beside the files: which library it is of counts, where a file lies does not."""
    library = source.place if source.kind == "source" else ""
    return source.kind, library, "" if library == "saved" else source.attribute


def files(request: Request) -> dict[str, str]:
    """The hash of each file whose content counts, by its path.

    OSError for one that is not there, UsageError for one that may not be read.
    """
    found = (path for paths in _files(request) for path in paths)
    return {str(path): _hash(path) for path in found}


def versions(request: Request) -> dict[str, str]:
    """What counts of the environment, but for the machine: the versions of Python, exporter and libraries.

    Among these are the distributions that the request's targets require, and those that ship the targets.
    """
    used = _targets(request)
    names = {"python", "exporter", *environment.DISTRIBUTIONS, *_libraries(used)}
    return {name: fact for name, fact in _environment(used).items() if name in names}


def _targets(request: Request) -> tuple[str, ...]:
    return tuple(dict.fromkeys(variant.target for variant in request.variants))


def _hash(path: Path) -> str:
    try:
        return _digest(path, path.stat().st_mtime_ns)
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "change its permissions or owner") from error


@functools.cache
def _digest(path: Path, changed: int) -> str:
    """A file's hash; `changed` is for the cache."""
    return checksums.of(path)


def _files(request: Request) -> Iterator[list[Path]]:
    """Files whose content counts, by what they are for."""
    source = request.source
    yield _model_files(source)
    yield provenance.shards(Path(source.checkpoint)) if source.checkpoint else []
    yield [Path(source.inputs_file)] if source.inputs_file else []
    yield [Path(file) for file in request.ops_libs if Path(file).is_file()]
    runner = environment.find_runner()
    yield [runner] if runner else []


def _model_files(source: Source) -> list[Path]:
    """The recipe's code, the saved program, or the model's folder."""
    if source.kind == "source" and source.place == "saved":
        return [Path(source.attribute)]
    if source.kind == "source":
        folder = Path(source.attribute).expanduser()
        return sorted(file for file in folder.rglob("*") if file.is_file()) if source.place == "hf" else []
    file = provenance.module_file(source.place) if source.kind == "name" else source.place
    return _code(Path(file)) if file else []  # the step says what is wrong with a module that is nowhere


class _Finder(ModuleFinder):
    """Follows imports in one folder and in its package; what else lies in `top`, beside the package, is of others."""

    def __init__(self, folder: Path, top: Path) -> None:
        super().__init__([str(folder)])
        self.package, self.top = folder.relative_to(top).parts[:1], str(top)

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """As ModuleFinder's."""
        if path is None and (name,) == self.package:
            path = [self.top]
        return super().find_module(name, path, parent)


def _code(path: Path) -> list[Path]:
    """A Python file and the modules in its folder or its package that it imports, and they; nothing is run."""
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
    except Exception:  # it does not compile, as the step will say
        return [path]
    found = (getattr(module, "__file__", None) for module in finder.modules.values())
    return sorted({path, *map(Path, filter(None, found))})


@functools.cache
def _environment(used: tuple[str, ...]) -> dict[str, str]:
    """Of what the manifest says of the environment with these targets, that which bears on the outcome."""
    found = environment.describe(_libraries(used)) | {"exporter": __version__}
    return {name: fact for name, fact in found.items() if name not in ("os", "cpus", "exporter-run")}


def _libraries(used: tuple[str, ...]) -> tuple[str, ...]:
    """Distributions that may bear on what these targets make."""
    return (*LIBRARIES, *targets.distributions(used, optional=True))
