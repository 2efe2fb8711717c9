"""Measure BERT-base and ResNet18 at batch 1: every target, as `exporter export` times it, and a bare trace."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from _process import output_of
from _rows import SAMPLES, Bench, Rows, failed

from exporter.bundle import layout
from exporter.core.errors import ExporterError, JobError
from exporter.core.records import EAGER, Manifest, VariantRecord
from exporter.evidence import stats

MODELS = {"bert": "BERT-base, batch 1, sequence 14", "resnet18": "ResNet18, batch 1, images of 224²"}
SMALL = f"{Path(__file__).with_name('_small.py')}:bert2"
QUICK_MODELS = {SMALL: "BERT-base cut to 2 layers, batch 1, sequence 14", "resnet18": MODELS["resnet18"]}
TARGETS = "trace,script,compile,compile:default,compile:reduce-overhead,compile:max-autotune,onnx"
QUICK_TARGETS = "trace,script,compile,compile:default,onnx"
LABELS = {
    "trace": "torch.jit.trace, frozen",
    "script": "torch.jit.script, frozen",
    "compile": "AOTInductor, frozen",
    "onnx": "onnxruntime",
}
LANGUAGES = {"python": "", "native": ", C++"}
BARE = ("eager, bare", "torch.jit.trace, not frozen, bare", "torch.jit.trace, frozen, bare")


def measure(bench: Bench) -> list[dict[str, Any]]:
    """Return two rotations for each model: exporter's rows, and bare calls."""
    found = []
    for model, label in (QUICK_MODELS if bench.quick else MODELS).items():
        found += [bench.rotation(label, EAGER, functools.partial(exported, bench, model))]
        by_hand = functools.partial(bench.measure, "_latency:bare", BARE, model=model)
        found += [bench.rotation(label, BARE[0], by_hand)]
    return found


def exported(bench: Bench, model: str) -> Rows:
    """Return the rows of `exporter export`, or one row with the reason if it timed nothing."""
    print(f"  exporter export {Path(model).name}", flush=True)
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        out = Path(folder) / "bundle"
        command = [sys.executable, "-m", "exporter", "export", model, "--weights", "random", "--dynamic", "none"]
        command += ["--device", bench.device, "--targets", QUICK_TARGETS if bench.quick else TARGETS, "-q"]
        command += ["--threads", str(bench.threads), "--time-budget", str(bench.budget_s)]
        command += ["--timeout", str(bench.row_limit_s), "--out", str(out)]
        try:
            text = output_of(command, bench.left(), {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"})
            if not (out / layout.SAMPLES).is_file():
                raise JobError(f"exporter timed nothing: {text[-300:]}")
            return rows_of(layout.read_manifest(out), json.loads((out / layout.SAMPLES).read_text()))
        except (ExporterError, TimeoutError) as error:
            return failed(["all of exporter export"], error)


def rows_of(manifest: Manifest, samples: dict[str, list[list[float]]]) -> Rows:
    """Return a row for each variant and language; if the variant failed there, the row has the reason."""
    rows: Rows = {}
    for variant in manifest.variants:
        for session in variant.sessions:
            timing = variant.timings.get(session.session)
            if session.status == "failed" or timing is None:
                rows[_name(variant, session.session)] = {"error": session.reason or variant.reason}
                continue
            rows[_name(variant, session.session, session.provider)] = {
                "windows": stats.thinned(samples[f"{variant.name} {session.session}"], SAMPLES),
                "stable": timing.stable,
                "facts": _facts(variant),
            }
        if not variant.sessions:
            rows[_name(variant, "python")] = {"error": variant.reason}
    return rows


def _name(variant: VariantRecord, language: str, provider: str = "") -> str:
    mode = variant.name.partition(":")[2]
    label = f"torch.compile, {mode}" if mode else LABELS.get(variant.name, variant.name)
    if any(note.startswith("not frozen") for note in variant.notes):
        label = label.replace("frozen", "not frozen")
    return f"{label}{LANGUAGES[language]}" + (f" ({provider})" if provider else "")


def _facts(variant: VariantRecord) -> dict[str, float]:
    if variant.artifact is None or variant.lifecycle.export_s is None:
        return {}
    return {"build_s": variant.lifecycle.export_s, "size_mb": sum(file.bytes for file in variant.files) / 1e6}


def bare(channel: Any, model: str, device: str, threads: int, budget: float, folder: str) -> Rows:
    """Return the rows of eager and of bare torch.jit.trace, not frozen and frozen."""
    import torch
    from _timed import rotate, settings

    from exporter.model import recipes

    recipe = recipes.load(recipes.find(model))
    with settings(device, threads, folder), torch.no_grad():
        torch.manual_seed(0)
        module = recipe.load("random").eval().to(device)
        inputs = {name: tensor.to(device) for name, tensor in recipe.inputs().items()}
        traced = torch.jit.trace(module, None, example_kwarg_inputs=inputs, strict=False, check_trace=False)
        modules = dict(zip(BARE, (module, traced, torch.jit.freeze(traced)), strict=True))
        calls = {name: functools.partial(each, **inputs) for name, each in modules.items()}
        return rotate(calls, budget, BARE[0], device)
