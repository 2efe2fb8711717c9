"""The key of a step: a hash over all that its bundle depends on. A step whose key is as it was need not be made again.

That is the recipe's code (the file and the modules beside it that it imports), files of weights and inputs, the
options, the versions of Python, exporter and libraries, exporter-run, and the machine. Where files lie does not count;
nor do gates, which are judged anew each time. What a hub changes behind a name is not seen: pin it, hf:ID@REVISION.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from exporter import __version__, environment, sums
from exporter.recipes import Source
from exporter.request import Request

# Fields of a request that its bundle does not depend on, or that are counted by their content.
LEFT_OUT = frozenset((
    "source", "out", "ops_libs", "command", "asked", "warnings", "goal", "timeout", "memory_limit_gb",
))  # fmt: skip


def key(request: Request) -> str:
    """The hash, in hex."""
    source = request.source
    facts = {
        "request": {k: v for k, v in dataclasses.asdict(request).items() if k not in LEFT_OUT},
        "source": [source.kind, "" if source.place == "saved" else source.attribute, source.task, source.allow_partial],
        "files": [[_digest(path, path.stat().st_mtime_ns) for path in files] for files in _files(request)],
        "environment": _environment(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


@functools.cache
def _digest(path: Path, changed: int) -> str:
    """A file's hash; `changed` is for the cache."""
    return sums.of(path)


def _files(request: Request) -> Iterator[list[Path]]:
    """Files whose content counts, by what they are for."""
    source = request.source
    yield _model_files(source)
    yield _shards(Path(source.checkpoint)) if source.checkpoint else []
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
    spec = importlib.util.find_spec(source.place) if source.kind == "name" else None
    return _code(Path(spec.origin if spec and spec.origin else source.place))


def _code(path: Path) -> list[Path]:
    """A Python file and the modules in its folder that it imports, and they; nothing is run."""
    finder = ModuleFinder([str(path.parent)])
    try:
        finder.run_script(str(path))
    except Exception:  # it does not compile, as the step will say
        return [path]
    found = (getattr(module, "__file__", None) for module in finder.modules.values())
    return sorted({path, *map(Path, filter(None, found))})


def _shards(checkpoint: Path) -> list[Path]:
    """The checkpoint, with the files that it names where it is the index of several."""
    names: dict[str, Any] = {}
    if checkpoint.name.endswith(".index.json"):
        names = json.loads(checkpoint.read_text(encoding="utf-8")).get("weight_map", {})
    shards = (checkpoint.parent / name for name in sorted(set(names.values())))
    return [checkpoint, *(shard for shard in shards if shard.is_file())]


@functools.cache
def _environment() -> dict[str, str]:
    """Of what the manifest says of the environment, that which bears on the outcome."""
    found = environment.describe() | {"exporter": __version__}
    found |= {name: version for name in ("timm", "torchao") if (version := environment.version(name))}
    return {name: fact for name, fact in found.items() if name not in ("os", "cpus", "exporter-run")}
