"""`provenance.json`: which command made a bundle, of what, on which machine.

An in-toto Statement v1 about every other file of the bundle, with a predicate of SLSA's provenance v1
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

Material = dict[str, Any]  # a ResourceDescriptor of in-toto's


def statement(manifest: Manifest, materials: tuple[Material, ...], finished: str, files: Mapping[str, str]) -> str:
    """The statement as JSON. `files` are hashes by path, `finished` is a time as the manifest's `created`."""
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
    """The hashes that a statement tells, by path. ArtifactError for what is no such statement."""
    try:
        found = json.loads(data)
        if (found["_type"], found["predicateType"]) != (STATEMENT, PREDICATE):
            raise ValueError("of another type")
        return {str(subject["name"]): str(subject["digest"]["sha256"]) for subject in found["subject"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"it is no in-toto statement of provenance: {error}") from error


def recorded(data: bytes) -> tuple[Material, ...]:
    """The materials that a statement tells. ArtifactError for what is no such statement."""
    try:
        found = json.loads(data)["predicate"]["buildDefinition"]["resolvedDependencies"]
        return tuple(_material(one) for one in found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"it is no in-toto statement of provenance: {error}") from error


def _material(found: Any) -> Material:
    made = {"name": "", **found, "annotations": dict(found["annotations"]), "digest": dict(found["digest"])}
    for text in (made["name"], made["annotations"].get("role", ""), *made["digest"].values()):
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.80} is no text")
    return made


def materials(source: Source) -> tuple[Material, ...]:
    """The files that a run starts from, with their hashes; and git's revision of the recipe, where git tracks it."""
    recipe = _recipe(source)
    checkpoint = shards(Path(source.checkpoint)) if source.checkpoint else []
    files = [("recipe", recipe), *(("checkpoint", str(file)) for file in checkpoint), ("inputs", source.inputs_file)]
    return (*_hashed(files), *_revision(recipe))


def _recipe(source: Source) -> str:
    """The file that the model comes from: a recipe, a pickle, or a saved program; "" where a library has it."""
    if source.kind == "name":
        return module_file(source.place)
    if source.kind == "source":
        return source.attribute if source.place == "saved" else ""
    return source.place


def module_file(name: str) -> str:
    """Where a module lies; nothing is imported, for its package may import torch."""
    top, *parts = name.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in (Path(folder, *parts, "__init__.py"), Path(folder, *parts).with_suffix(".py")):
            if file.is_file():
                return str(file)
    return (spec and spec.origin) or ""


def _hashed(files: Iterable[tuple[str, str]]) -> Iterator[Material]:
    for role, file in files:
        with suppress(OSError):  # whoever needs it says what is wrong with it
            if file:
                digest = {"sha256": checksums.of(Path(file))}
                yield {"name": Path(file).name, "digest": digest, "annotations": {"role": role}}


def shards(checkpoint: Path) -> list[Path]:
    """The checkpoint, with the files that it names where it is the index of several."""
    names: set[str] = set()
    if checkpoint.name.endswith(".index.json"):
        # The step says what is wrong.
        with suppress(OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            named = json.loads(checkpoint.read_text(encoding="utf-8"))["weight_map"].values()
            names = {name for name in named if isinstance(name, str)}
    shards = (checkpoint.parent / name for name in sorted(names))
    return [checkpoint, *(shard for shard in shards if shard.is_file())]


def _revision(file: str) -> Iterator[Material]:
    path = Path(file)
    if file and _git(path.parent, "ls-files", "--error-unmatch", path.name):
        said = _git(path.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        commit, dirty, _ = said.partition("-dirty")
        if commit:
            annotations = {"role": "repository of the recipe", "dirty": bool(dirty)}
            yield {"digest": {"gitCommit": commit}, "annotations": annotations}


def _git(folder: Path, *words: str) -> str:
    """What git says; "" where there is none, or it has nothing to say."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
