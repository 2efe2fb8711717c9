"""Runs and commands for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter import targets
from exporter.bundle import integrity, provenance
from exporter.bundle import layout as bundles
from exporter.core import environment, filesystem
from exporter.core.json_codec import to_json
from exporter.core.records import Manifest
from exporter.model import recipes
from exporter.runs.request import Request

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
RECIPES = TESTS / "recipes"
BENCHMARKS = ROOT / "benchmarks"
NATIVE = environment.find_runner() is not None

Run = Callable[..., tuple[Manifest, Path]]


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def request_for(recipe: str, out: Path, names: str = "trace", **settings: Any) -> Request:
    """Return a request for one of the recipes in tests/recipes (`tiny:mlp`), without timing."""
    text = recipe_path(recipe)
    settings = {"bench": False, "threads": 1, "timeout": 300.0} | settings
    return Request(
        recipe.partition(":")[2],
        recipes.find(text),
        tuple(targets.parse(names)),
        out,
        asked=text,
        command="exporter ...",
        **settings,
    )


def start_cli(*words: object, **settings: Any) -> subprocess.Popen[str]:
    """Start the command line in a separate process."""
    command = [sys.executable, "-P", "-c", "from exporter.cli import main; main()", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)


def recipe_path(name: str) -> str:
    """Return `tiny:mlp` as an argument for the command line."""
    stem, _, attribute = name.partition(":")
    return f"{RECIPES / stem}.py:{attribute}"


def republish(place: Path, manifest: Manifest) -> None:
    """Replace the manifest of a bundle, and rewrite the records that prove it, with the same materials."""
    materials = provenance.recorded((place / bundles.PROVENANCE).read_bytes())
    filesystem.write_atomic(place / bundles.MANIFEST, to_json(manifest) + "\n")
    integrity.seal(place, manifest, materials)
