"""Compare exports, with all their checks, with the same bare calls and with optimum-cli: wall time and memory.

`--optimum` names the Python of an environment with optimum-onnx; BERT is then also exported to ONNX by both. Memory is
the largest of samples of the process and its children, in which pages that processes share count once; those runs are
not timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _process import verdict
from _tree import Sampler

PLAIN = Path(__file__).with_name("_plain.py")
EXPORTER = str(Path(sys.executable).with_name("exporter"))
OPTIMUM = ("-m", "optimum.commands.optimum_cli", "export", "onnx", "--task", "feature-extraction", "--framework", "pt")
SAVE = "import sys, transformers as t; t.BertModel(t.BertConfig()).save_pretrained(sys.argv[1])"


def main() -> None:
    """Run all in turn, each with an empty compiler cache, except `exporter again`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--optimum", metavar="PYTHON", help="compare the export to ONNX too")
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {}
    memory: dict[str, float] = {}

    def measure(name: str, command: Sequence[str], cache: str) -> None:
        times.setdefault(name, []).append(run(command, cache))
        print(f"{name}: {times[name][-1]:.1f} s", flush=True)

    with tempfile.TemporaryDirectory() as model:
        subprocess.run([sys.executable, "-c", SAVE, model], check=True, capture_output=True)
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as folder:
                measure("exporter", export("bert", "trace,compile,onnx", f"{folder}/first"), folder)
                measure("exporter again", export("bert", "trace,compile,onnx", f"{folder}/again"), folder)
            with tempfile.TemporaryDirectory() as folder:
                measure("plain", [sys.executable, str(PLAIN), folder], folder)
            if arguments.optimum:
                with tempfile.TemporaryDirectory() as folder:
                    for name, command in to_onnx(arguments.optimum, model, folder).items():
                        measure(name, command, folder)
        if arguments.optimum:
            with tempfile.TemporaryDirectory() as folder:
                for name, command in to_onnx(arguments.optimum, model, folder).items():
                    samples: list[float] = []
                    run(command, folder, samples)
                    memory[name] = max(samples)
                    print(f"{name}: {memory[name]:.2f} GB", flush=True)

    def ratio(one: str, other: str) -> float:
        return statistics.median(ours / theirs for ours, theirs in zip(times[one], times[other], strict=True))

    claims = [
        ("exporter over the plain script, wall time", ratio("exporter", "plain"), 1.0),
        ("exporter again over the plain script, wall time", ratio("exporter again", "plain"), 0.25),
    ]
    if arguments.optimum:
        claims += [
            ("exporter to ONNX over optimum-cli, wall time", ratio("exporter to ONNX", "optimum-cli"), 1.5),
            ("exporter to ONNX over optimum-cli, memory", memory["exporter to ONNX"] / memory["optimum-cli"], 1.2),
        ]
    verdict(claims)


def export(model: str, targets: str, out: str) -> list[str]:
    """Return the command of an export without timings."""
    weights = [] if model.startswith("hf:") else ["--weights", "random"]
    return [EXPORTER, "export", model, *weights, "--targets", targets, "--no-bench", "-q", "--out", out]


def to_onnx(optimum: str, model: str, folder: str) -> dict[str, list[str]]:
    """Return the commands that export a saved model to ONNX; `optimum` is the Python that has optimum-onnx."""
    return {
        "exporter to ONNX": export(f"hf:{model}", "onnx", f"{folder}/bundle"),
        "optimum-cli": [optimum, *OPTIMUM, "--model", model, f"{folder}/optimum"],
    }


def run(command: Sequence[str], cache: str, samples: list[float] | None = None) -> float:
    """Run a command to its end; return its wall time in seconds.

    The memory in GB is added to `samples` in short intervals. Raises RuntimeError if the command fails.
    """
    started = time.time()
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/cache"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    ) as process:
        sampler = Sampler(process.pid, started)
        if samples is not None:
            sampler.start()
        output = process.communicate()[0]
        seconds = time.time() - started
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{output[-3000:]}")
    if samples is not None:
        sampler.stop()
        samples += [gigabytes for _, gigabytes in sampler.samples]
    return seconds


if __name__ == "__main__":
    main()
