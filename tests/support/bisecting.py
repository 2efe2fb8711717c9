"""Examining a variant in this process, with what a test has planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter import targets
from exporter.core import probing, tolerances
from exporter.evidence import golden as goldens
from exporter.evidence import make_golden
from exporter.workers import keeping, loading, tasks
from exporter.workers.bisect import Asked, Bisection, child
from exporter.workers.messages import Job
from support.commands import request_for


def inquire(
    folder: Path, name: str, recipe: str = "blocks:block", spoil: Any = None, device: str = "cpu", **asking: Any
) -> Bisection:
    """Export a model of tests/recipes to a variant, change the artifact with `spoil`, and examine it."""
    (variant,) = targets.parse(name)
    options = replace(targets.Options(threads=1, device=device).of(variant), judged_as="")
    request = request_for(recipe, folder / "out", state=asking.pop("state", "carry"))
    job = replace(request.job(folder / "work"), options=options)
    job.work.mkdir()
    path = folder / variant.artifact
    targets.get(variant.target).export(tasks.program(job, variant.target)[0], path, options)
    if spoil:
        spoil(path)
    asked = Asked(variant.target, variant.name, path, golden_of(job, folder), folder / "found", **asking)
    return child.inquire(job, asked, lambda step: None)


def golden_of(job: Job, folder: Path) -> Path:
    """Make the golden of a job as an export does, in this process, for a few cases with usual values."""
    loaded = loading.load_model(job)
    found = keeping.find(job, loaded)
    cases = tuple(probing.probe_plan(loaded.base, loaded.symbols))[:4]
    plan = make_golden.Plan(cases, loaded.symbols, unusual=False)
    others = {name: tolerances.BY_PRECISION[name] for name in (job.options.precision,) if name != "fp32"}
    make = tasks._make_sequences if loaded.state else tasks._make_cases
    made, _ = make(job, loaded, found, plan, tolerances.of_outputs(()), others)
    goldens.save(made, folder / "golden.safetensors")
    return folder / "golden.safetensors"
