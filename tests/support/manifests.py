"""Handwritten manifests, for tests of code that reads them."""

from __future__ import annotations

import json
from typing import Any

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.json_codec import to_json
from exporter.core.parity_records import CaseRecord, Parity, Tolerance
from exporter.core.records import (
    ArtifactRecord,
    GoldenRecord,
    Lifecycle,
    Manifest,
    ModelRecord,
    SessionRecord,
    VariantRecord,
)
from exporter.core.size_range import Range
from exporter.core.timing_records import Timing

CONTRACT = Contract(
    "toy",
    (TensorSpec("x", "float32", ("batch", 4)),),
    (TensorSpec("output", "float32", ("batch", None)),),
    {"batch": Range(1, 8)},
    torch="2.14.1",
)
EXACT = Parity("exact", 0.0, 0.0, 1.0, 1.0, "output[0, 0] at batch=2 seed 0", cases=5)


def timing(median: float, half: float = 0.1, eager: float = 10.0, **changes: Any) -> Timing:
    """Return a latency of `median` ± `half` ms."""
    speedup = eager / median
    settings: dict[str, Any] = {
        "p90_ms": median * 1.1,
        "p99_ms": median * 1.2,
        "min_ms": median * 0.9,
        "max_ms": median * 1.5,
        "ci95_ms": (median - half, median + half),
        "runs": 1000,
        "stable": True,
        "speedup": speedup,
        "speedup_ci95": (speedup * 0.99, speedup * 1.01),
    }
    return Timing(median, **settings | changes)


def variant(name: str = "trace", median: float | None = 5.0, **changes: Any) -> VariantRecord:
    """Return a variant that passed in Python, and was timed if it has a median."""
    settings: dict[str, Any] = {
        "status": "passed",
        "stage": "done",
        "reproduce": f"exporter export toy --targets {name}",
        "log": f"logs/{name}.log",
        "artifact": ArtifactRecord(f"{name}.pt", 1_234_567, "0" * 64),
        "contract": CONTRACT,
        "parity": EXACT,
        "lifecycle": Lifecycle(1.5, 0.2, 12.0, 300.0),
        "sessions": (
            SessionRecord("python", "passed", "done", load_s=0.2, first_call_ms=12.0, peak_rss_mb=300.0, parity=EXACT),
        ),
        "timings": {} if median is None else {"python": timing(median)},
    }
    return VariantRecord(name, name.partition(":")[0], **settings | changes)


def failed(name: str = "script", reason: str = "TorchScript has no cond", **changes: Any) -> VariantRecord:
    """Return a variant whose export failed."""
    settings: dict[str, Any] = {
        "stage": "export",
        "reason": reason,
        "remedy": "write the branch otherwise",
        "reproduce": f"exporter export toy --targets {name}",
        "log": f"logs/{name}.log",
    }
    return VariantRecord(name, name, "failed", **settings | changes)


EAGER = variant("eager", 10.0, artifact=None, lifecycle=Lifecycle(load_s=0.5))
GOLDEN = GoldenRecord(
    ArtifactRecord("golden.safetensors", 999, "1" * 64),
    tuple(map(CaseRecord.of_text, ("batch=2", "batch=2 seed 1", "batch=8"))),
    "float64",
    Tolerance(1e-4, 1e-5, 2.0),
    1.7e-8,
    True,
)


def manifest(*variants: VariantRecord, **changes: Any) -> Manifest:
    """Return a complete manifest with these variants."""
    settings: dict[str, Any] = {
        "status": "complete",
        "environment": {"cpu": "A Fine CPU", "isa": "avx2", "torch": "2.14.1"},
        "contract": CONTRACT,
        "golden": GOLDEN,
        "variants": variants,
    }
    model = ModelRecord("toy", "toy.py:toy", "random", 0, 1_500_000, {"batch": 2})
    return Manifest(model, "cpu", 2, "exporter export toy", "2026-01-02T03:04:05+00:00", "0.1.0", **settings | changes)


MANIFEST = manifest(EAGER, variant(), failed())


def edited(*path: str | int, to: Any) -> str:
    """Return the manifest's JSON with one value replaced."""
    data = json.loads(to_json(MANIFEST))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(data)
