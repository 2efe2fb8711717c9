"""A release whose steps write bundles like the pipeline, without a model. `python releases.py STEPS OUT` runs it."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from exporter.bundle import layout, publishing
from exporter.core.progress import Listener
from exporter.core.records import Manifest
from exporter.release import executor, file, plan, run
from exporter.release.plan import Step
from exporter.runs.request import Request
from support.manifests import GOLDEN, manifest, variant

LOG = "log"  # next to the bundles; has a line for each step that began


def make(request: Request, *_: object) -> tuple[Manifest, Path]:
    """Do what pipeline.run does, without a model."""
    name = request.variants[0].name
    with (request.out.parents[2] / LOG).open("a") as log:
        log.write(f"{request.model} {name}\n")
    with publishing.stage(request.out) as staging:
        for file in ("trace.pt", layout.GOLDEN):
            (staging.root / file).write_text(f"{request.model} {name} {file}")
        time.sleep(0.02)
        golden = replace(GOLDEN, file=layout.record(staging.root / layout.GOLDEN))
        made = manifest(variant(name, artifact=layout.record(staging.root / "trace.pt")), golden=golden)
        staging.write(made)
        return made, staging.publish()


def begun(out: Path) -> int:
    """Return how many steps have begun in all."""
    return len((out / LOG).read_text().splitlines()) if (out / LOG).exists() else 0


def die(step: Step) -> executor.Outcome:
    """Act like executor.perform when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def resume(steps: list[Step], out: Path) -> list[run.Row]:
    """Resume the release."""
    return run.run(steps, steps, out, True, executor.Local(), Listener())


if __name__ == "__main__":
    executor.pipeline = SimpleNamespace(run=make)  # type: ignore[assignment]
    resume(pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))


def planned(folder: Path, text: str) -> list[Step]:
    path = folder / "release.toml"
    path.write_text(text)
    return plan.make(file.read(path), folder / "out")[0]
