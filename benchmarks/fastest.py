"""Measure how much faster than eager and onnxruntime the fastest artifact that keeps parity is.

BERT and ResNet-18 are exported at batch 1, with fixed shapes, to every target in every precision. All artifacts of a
model are timed side by side in one run. Exits with 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PRECISIONS = {"cpu": "fp32,bf16,int8", "cuda": "fp32,tf32,fp16"}
TARGETS = {"cpu": "trace,compile,onnx", "cuda": "trace,compile,onnx,compile:reduce-overhead"}
FLOAT32 = ("fp32", "tf32")  # computed from float32 weights and inputs
# (model, precisions that count, variant to compare with, lowest ratio). A missing measurement breaks the promise too.
PROMISES = {
    "cpu": [
        ("bert", ("fp32",), "eager", 3.3),
        ("bert", ("fp32",), "onnx", 1.2),
        ("resnet18", ("fp32",), "eager", 1.6),
        ("resnet18", ("fp32",), "onnx", 1.0),
        ("bert", None, "eager", 8.0),
        ("bert", None, "onnx@int8", 1.3),
        ("resnet18", None, "eager", 3.0),
    ],
    "cuda": [
        ("bert", FLOAT32, "eager", 2.6),
        ("resnet18", FLOAT32, "eager", 4.0),
        ("bert", ("fp16",), "eager", 6.0),
        ("resnet18", ("fp16",), "eager", 5.0),
        *(
            (model, precisions, over + suffix, 1.0)
            for model in ("bert", "resnet18")
            for precisions, suffix in ((FLOAT32, "@tf32"), (("fp16",), "@fp16"))
            for over in ("compile:reduce-overhead", "onnx")
        ),
    ],
}


def main() -> None:
    """Export and time each model, then check the promises."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", default="bert,resnet18")
    parser.add_argument("--time-budget", default="8")
    parser.add_argument("--out", type=Path, help="keep the reports and the manifests here")
    arguments = parser.parse_args()
    manifests = {name: measure(name, arguments) for name in arguments.models.split(",")}
    kept = [check(manifests[promise[0]], *promise) for promise in PROMISES[arguments.device] if promise[0] in manifests]
    sys.exit(0 if all(kept) else 1)


def measure(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Export a model, which prints the table; return the manifest."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        command = [sys.executable, "-m", "exporter", "export", model, "--weights", "random", "--dynamic", "none"]
        command += ["--device", arguments.device, "--targets", TARGETS[arguments.device], "-q"]
        command += ["--precision", PRECISIONS[arguments.device], "--time-budget", arguments.time_budget]
        subprocess.run([*command, "--out", str(bundle)], check=False)
        text = (bundle / "manifest.json").read_text()
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            report = [sys.executable, "-m", "exporter", "report", str(bundle), "--format", "md"]
            (arguments.out / f"{model}.md").write_text(subprocess.check_output(report, text=True))
            (arguments.out / f"{model}.json").write_text(text)
        manifest: dict[str, Any] = json.loads(text)
        return manifest


def timings(manifest: dict[str, Any], names: Iterable[str] | None = None) -> list[tuple[float, str]]:
    """Return (milliseconds, row) of all variants that passed, or of those in `names`; the fastest first."""
    return sorted(
        (timing["median_ms"], f"{row['name']} {session}")
        for row in manifest["variants"]
        if row["status"] == "passed" and (names is None or row["name"] in names)
        for session, timing in row["timings"].items()
    )


def check(manifest: dict[str, Any], model: str, precisions: tuple[str, ...] | None, over: str, least: float) -> bool:
    """Print one promise with its measurement; return whether it is kept."""
    artifacts = [row for row in manifest["variants"] if row["artifact"]]
    ours = [
        row["name"]
        for row in artifacts
        if (precisions is None or row["contract"]["precision"] in precisions)
        and (over == "eager" or row["name"] != over)
    ]
    best, theirs = timings(manifest, ours), timings(manifest, [over])
    claim = f"{model} {'any precision' if precisions is None else ' or '.join(precisions)} over {over}"
    if not best or not theirs:
        print(f"{claim}: not measured  OVER")
        return False
    ratio = theirs[0][0] / best[0][0]
    kept = ratio >= least
    print(f"{claim}: {ratio:.2f} ({best[0][1]} {best[0][0]:.3g} ms, {theirs[0][0]:.3g} ms), promised {least:g}", end="")
    print("" if kept else "  OVER")
    return kept


if __name__ == "__main__":
    main()
