"""`provenance.json`: the command, the materials and the machine that a bundle was made with.

It is an in-toto Statement v1 about every other file of the bundle, with a SLSA provenance v1 predicate
(https://in-toto.io/Statement/v1, https://slsa.dev/provenance/v1).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from exporter.bundle import checksums
from exporter.core.errors import ArtifactError
from exporter.core.records import Manifest
from exporter.model.recipes import Source

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:exporter:export:1"  # docs/formats.md describes it
GIT_S = 20.0

Material = dict[str, Any]  # an in-toto ResourceDescriptor


def statement(manifest: Manifest, materials: tuple[Material, ...], finished: str, files: Mapping[str, str]) -> str:
    """Return the statement as JSON. `files` has hashes by path; `finished` is in the format of `manifest.created`."""
    model = manifest.model
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "command": manifest.command,
                "model": model.name,
                "source": model.source,
                "weights": model.weights,
                "seed": model.seed,
                "device": manifest.device,
                "threads": manifest.threads,
                "variants": [variant.name for variant in manifest.variants],
            },
            "internalParameters": {"status": manifest.status, "environment": manifest.environment},
            "resolvedDependencies": list(materials),
        },
        "runDetails": {
            "builder": {
                "id": f"pkg:generic/exporter@{manifest.exporter}",
                "version": {"exporter": manifest.exporter},
            },
            "metadata": {"startedOn": manifest.created, "finishedOn": finished},
        },
    }
    made = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }
    return json.dumps(made, indent=2) + "\n"


def subjects(data: bytes) -> dict[str, str]:
    """Read the hashes in a statement, by path. Raises ArtifactError if it is not valid."""
    try:
        found = json.loads(data)
        if (found["_type"], found["predicateType"]) != (STATEMENT, PREDICATE):
            raise ValueError("wrong type")
        return {str(subject["name"]): str(subject["digest"]["sha256"]) for subject in found["subject"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"it is not an in-toto provenance statement: {error}") from error


def recorded(data: bytes) -> tuple[Material, ...]:
    """Read the materials in a statement. Raises ArtifactError if it is not valid."""
    try:
        found = json.loads(data)["predicate"]["buildDefinition"]["resolvedDependencies"]
        return tuple(_material(one) for one in found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"it is not an in-toto provenance statement: {error}") from error


def _material(found: Any) -> Material:
    made = {"name": "", **found, "annotations": dict(found["annotations"]), "digest": dict(found["digest"])}
    for text in (made["name"], made["annotations"].get("role", ""), *made["digest"].values()):
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.80} is not text")
    return made


def materials(source: Source) -> tuple[Material, ...]:
    """Return the input files of a run with their hashes, and the git commit of the recipe if git tracks it."""
    return (*_hashed(_files(source)), *_revision(_recipe(source)))


def changed(before: Iterable[Material], after: Iterable[Material]) -> Iterator[str]:
    """Yield the names of files with another hash. A file that did not exist before may be made by the recipe."""
    hashed: dict[tuple[str, str | None], set[str]] = {}  # shards in several folders may have one name
    for one in before:
        hashed.setdefault((one["annotations"]["role"], one.get("name")), set()).add(one["digest"].get("sha256", ""))
    for one in after:
        known = hashed.get((one["annotations"]["role"], one.get("name")))
        if known and one["digest"].get("sha256", "") not in known and "sha256" in one["digest"]:
            yield str(one["name"])


def stamps(source: Source) -> tuple[tuple[int, ...], ...]:
    """Return what changes if one of the input files of a run is written to or replaced, without reading it."""
    found: list[tuple[int, ...]] = []
    for _, file in _files(source):
        with suppress(OSError):
            found.append(stamp(Path(file)))
    return tuple(found)


def stamp(file: Path) -> tuple[int, ...]:
    """Return what changes if a file is written to or replaced, even if its time of modification is set back."""
    held = file.stat()
    return held.st_dev, held.st_ino, held.st_size, held.st_mtime_ns, held.st_ctime_ns


def _files(source: Source) -> list[tuple[str, str]]:
    """Return the input files of a run with their roles."""
    checkpoint = shards(Path(source.checkpoint)) if source.checkpoint else []
    files = [("recipe", _recipe(source)), *(("checkpoint", str(file)) for file in checkpoint)]
    return [(role, file) for role, file in (*files, ("inputs", source.inputs_file)) if file]


def _recipe(source: Source) -> str:
    """Return the file of the model: a recipe, a pickle or a saved program; "" if a library provides it."""
    if source.kind == "name":
        return module_file(source.place)
    if source.kind == "source":
        return source.attribute if source.place == "saved" else ""
    return source.place


def module_file(name: str) -> str:
    """Return the file of a module without importing its package, which may import torch."""
    top, *parts = name.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in (Path(folder, *parts, "__init__.py"), Path(folder, *parts).with_suffix(".py")):
            if file.is_file():
                return str(file)
    return (spec and spec.origin) or ""


def _hashed(files: Iterable[tuple[str, str]]) -> Iterator[Material]:
    for role, file in files:
        with suppress(OSError):  # the code that reads the file reports the error
            digest = {"sha256": checksums.of(Path(file))}
            yield {"name": Path(file).name, "digest": digest, "annotations": {"role": role}}


def shards(checkpoint: Path) -> list[Path]:
    """Return the checkpoint, followed by its shards if it is an index of several files."""
    names: set[str] = set()
    if checkpoint.name.endswith(".index.json"):
        # The step that loads the checkpoint reports the error.
        with suppress(OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            named = json.loads(checkpoint.read_text(encoding="utf-8"))["weight_map"].values()
            names = {name for name in named if isinstance(name, str)}
    shards = (checkpoint.parent / name for name in sorted(names))
    return [checkpoint, *(shard for shard in shards if shard.is_file())]


def _revision(file: str) -> Iterator[Material]:
    path = Path(file)
    if file and _git(path.parent, "ls-files", "--error-unmatch", path.name):
        described = _git(path.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        commit, dirty, _ = described.partition("-dirty")
        if commit:
            annotations = {"role": "repository of the recipe", "dirty": bool(dirty)}
            yield {"digest": {"gitCommit": commit}, "annotations": annotations}


def _git(folder: Path, *words: str) -> str:
    """Return the output of git; "" if it fails or is not installed."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
