"""Measure what each node of an exported program costs in C++ beyond its operator, beside TorchScript's interpreter.

The model adds a number to a tensor of one element 200 times. Exits with 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from call import build

COUNT = 200
MOST_US = 1.2  # per node, beyond the operator
MOST_RATIO = 2.0  # to the overhead of TorchScript's interpreter
MODEL = f"""
import torch


class Additions(torch.nn.Module):
    def forward(self, x):
        for _ in range({COUNT}):
            x = x + 1.0
        return x


def additions():
    return Additions()


def additions_inputs():
    return {{"x": torch.ones(1)}}
"""
ROOT = Path(__file__).parents[1]


def main() -> None:
    """Build the program, export the model, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes, each with 5,000 calls of each kind")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cpp")
    arguments = parser.parse_args()
    build(arguments.build)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.py").write_text(MODEL)
        out = Path(folder, "bundle")
        command = [sys.executable, "-m", "exporter", "export", f"{folder}/model.py:additions", "--device", "cpu"]
        command += ["--targets", "trace,export", "--no-bench", "-q", "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        command = [
            str(arguments.build / "exporter-nodes"),
            str(out / "exported.pt2"),
            str(out / "trace.pt"),
            str(COUNT),
        ]
        runs = [
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            for _ in range(arguments.rounds)
        ]
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    ratio = statistics.median(run["exported_us"] / run["trace_us"] for run in runs)
    print(f"operator: {found['operator_us']:.3f} µs; beyond it, a node of the traced file: {found['trace_us']:.3f} µs")
    kept = [
        said(f"a node of the exported program: {found['exported_us']:.3f} µs", found["exported_us"], MOST_US),
        said(f"over the traced file's: {ratio:.2f}", ratio, MOST_RATIO),
    ]
    sys.exit(0 if all(kept) else 1)


def said(what: str, value: float, most: float) -> bool:
    """Print whether a promise is kept, and return it."""
    print(f"{'ok  ' if value <= most else 'OVER'}  {what}, at most {most:g}", flush=True)
    return value <= most


if __name__ == "__main__":
    main()
