"""Measure a GPU's throughput beside the peak of a plain matrix product, and latency under load.

BERT (32 x 128 tokens), ViT-B/16 and ResNet-50 (64 images) are exported with fixed sizes in half precisions. Each row's
share is its floating-point operations a second over those of a matrix product of 8192 x 8192, measured in the same run.
Then eight callers, of one model and of two at once, call at even intervals at 70% of the throughput that they reach
without pauses. Exits with 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from exporter.core import environment
from exporter.model import recipes

MODELS = {
    "bert": {"batch": 32, "sequence": 128},
    "torchvision:vit_b_16": {"batch": 64},
    "torchvision:resnet50": {"batch": 64},
}
SHARE = {"bert": 0.6}  # of the peak, at least, for the fastest of our rows
TAIL = 1.5  # the most that the 99th percentile may be over the median
LOAD, CALLERS = 70, 8
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def main() -> None:
    """Measure all models, print a table for each, and check the promises."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precision", default="fp16,bf16")
    parser.add_argument("--targets", default="trace,compile,compile:reduce-overhead,export")
    parser.add_argument("--inductor", action="append", default=[], help="as for exporter export")
    parser.add_argument("--time-budget", default="3")
    parser.add_argument("--no-tail", action="store_true", help="skip the latency under load")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    with tempfile.TemporaryDirectory() as folder:
        kept = [
            share_of_peak(model, precision, Path(folder), arguments)
            for model in arguments.models.split(",")
            for precision in arguments.precision.split(",")
        ]
        if not arguments.no_tail:
            kept += tails(Path(folder), arguments)
    sys.exit(0 if all(kept) else 1)


def export(model: str, sizes: dict[str, int], precision: str, out: Path, *options: str) -> dict[str, Any]:
    """Export a model with fixed sizes; return the manifest."""
    command = [sys.executable, "-m", "exporter", "export", model, "--weights", "random", "--device", "cuda", "-q"]
    command += ["--dynamic", "none", "--precision", precision, "--out", str(out), *options]
    command += [f"--size={name}={size}" for name, own in sizes.items() for size in (f"1..{max(own, 128)}", own)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if not (out / "manifest.json").is_file():
        raise SystemExit(done.stdout)
    found: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return found


def peak(dtype: torch.dtype, size: int = 8192, runs: int = 20) -> float:
    """Return the floating-point operations a second of a square matrix product."""
    a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    rates = []
    for _ in range(7):
        begin.record()
        for _ in range(runs):
            a @ b
        end.record()
        end.synchronize()
        rates.append(2 * size**3 * runs / (begin.elapsed_time(end) / 1e3))
    return sorted(rates)[len(rates) // 2]


def operations(model: str, sizes: dict[str, int]) -> int:
    """Return the floating-point operations of one call, by torch's counter."""
    recipe = recipes.load(recipes.find(model))
    module, inputs = recipe.load("random").eval().to("cuda"), recipe.inputs(**sizes)
    named = inputs if isinstance(inputs, dict) else {}
    given = () if named else (inputs,) if torch.is_tensor(inputs) else inputs
    counter = FlopCounterMode(display=False)
    torch.backends.mha.set_fastpath_enabled(False)  # the counter does not count its fused operator
    with torch.no_grad(), counter:
        module(*map(_on_gpu, given), **{name: _on_gpu(value) for name, value in named.items()})
    return counter.get_total_flops()


def _on_gpu(value: Any) -> Any:
    return value.to("cuda") if torch.is_tensor(value) else value


def share_of_peak(model: str, precision: str, folder: Path, arguments: argparse.Namespace) -> bool:
    """Print each row's share of the peak; return whether the promise is kept."""
    sizes = MODELS[model]
    before = peak(DTYPES[precision])
    options = [f"--inductor={one}" for one in arguments.inductor]
    options += ["--targets", arguments.targets, "--time-budget", arguments.time_budget]
    place = folder / f"{model.rpartition(':')[2]}-{precision}"
    manifest = export(model, sizes, precision, place, *options)
    highest, work = (before + peak(DTYPES[precision])) / 2, operations(model, sizes)
    shares = {
        f"{row['name']} {session}": (timing["median_ms"], work / timing["median_ms"] * 1e3 / highest)
        for row in manifest["variants"]
        if row["status"] == "passed"
        for session, timing in row["timings"].items()
    }
    told = " ".join(f"{name} {size}" for name, size in sizes.items())
    print(f"\n{model} {precision}, {told}: {work / 1e12:.3f} TFLOP; peak {highest / 1e12:.0f} TFLOP/s")
    for row, (milliseconds, share) in sorted(shares.items(), key=lambda item: item[1]):
        print(f"  {row:36} {milliseconds:8.3f} ms  {share:6.1%}")
    for row in manifest["variants"]:
        if row["status"] == "failed":
            print(f"  {row['name']}: {row['reason'][:160]}")
    best = max((share for row, (_, share) in shares.items() if not row.startswith("eager")), default=0.0)
    return verdict(f"{model} {precision}, share of the peak", best, best >= SHARE.get(model, 0.0))


def verdict(what: str, value: float, kept: bool) -> bool:
    """Print one promise."""
    print(f"{'ok  ' if kept else 'OVER'}  {what}: {value:.3f}", flush=True)
    return kept


def tails(folder: Path, arguments: argparse.Namespace) -> list[bool]:
    """Measure eight callers of one model, then four of each of two models at once."""
    precision = arguments.precision.partition(",")[0]
    packages = []
    for model, sizes in {"bert": {"batch": 1, "sequence": 128}, "resnet18": {"batch": 1}}.items():
        export(model, sizes, precision, folder / f"{model}-one", "--targets", "compile", "--no-bench")
        packages.append(folder / f"{model}-one" / f"compile@{precision}.pt2")
    print(f"\nlatency at {LOAD}% of the callers' highest throughput, {CALLERS} callers")
    kept = [tail("bert", *under_load(packages[:1], CALLERS))]
    both = under_load(packages, CALLERS // 2)
    return kept + [
        tail(f"{name} beside the other", load) for name, load in zip(("bert", "resnet18"), both, strict=True)
    ]


def under_load(packages: list[Path], callers: int) -> list[dict[str, Any]]:
    """Return what exporter-run measures for one package, or for two that it calls at the same time."""
    runner = str(environment.find_runner())
    options = ["--callers", str(callers), "--streams", str(callers), "--load", str(LOAD), "--json", "--runs", "500"]
    beside = [word for package in packages[1:] for word in ("--beside", str(package))]
    answers = subprocess.check_output([runner, "bench", packages[0], *options, *beside], text=True)
    return [json.loads(line) for line in answers.splitlines()]


def tail(name: str, load: dict[str, Any]) -> bool:
    """Print one model's latency under load; return whether the promise is kept."""
    print(f"  {name}: {load['calls_per_s']:.0f} of {load['highest_calls_per_s']:.0f} calls/s, median ", end="")
    print(f"{load['median_ms']:.3f}, p99 {load['p99_ms']:.3f} ms")
    return verdict(
        f"{name}, p99 over the median", load["p99_ms"] / load["median_ms"], load["p99_ms"] <= TAIL * load["median_ms"]
    )


if __name__ == "__main__":
    main()
