"""Measure what a call from C++ costs beyond torch's own, and how throughput grows with callers.

The overhead of `exporter::Artifact` is measured against the bare `forward` or `run` and, on a GPU, against replaying
the bare CUDA graph. The throughput of callers that share one artifact is compared with one process per core, each with
its own artifact and caller, which is the most that the cores allow. Exits with 1 if a promise is not kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from exporter.core import environment

ROOT = Path(__file__).parents[1]
MIN_SHARE = 0.9  # of the throughput that the cores allow
CALLERS = (1, 2, 4, 8)
RUNS = 40  # calls per process, by all its callers
MANY = """
import torch


class Many(torch.nn.Module):
    def forward(self, a, b, c, d, e, f):
        return a + b, c + d, e + f


def many():
    return Many()


def many_inputs(batch=2):
    return {name: torch.randn(batch, 16) for name in "abcdef"}
"""


def main() -> None:
    """Build the programs, export the models, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--models", default="many,bert", help="models whose overhead is measured; `many` has six small inputs"
    )
    parser.add_argument("--load", default="resnet18", help="the model whose throughput is measured, on the CPU")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the throughput measurement")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cpp")
    arguments = parser.parse_args()
    build(arguments.build)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "many.py").write_text(MANY)
        kept = [
            overhead(arguments.build, artifact, arguments.device)
            for model in arguments.models.split(",")
            for artifact in export(model, Path(folder), arguments.device)
        ]
        if arguments.device == "cpu":
            kept += [
                scales(arguments.build, artifact, arguments.rounds)
                for artifact in export(arguments.load, Path(folder), "cpu")
            ]
    sys.exit(0 if all(kept) else 1)


def build(place: Path) -> None:
    """Build the C++ programs in `place`; the default is the build tree of `make cpp`."""
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DPython3_EXECUTABLE={sys.executable}"]
    configure = ["cmake", "-S", str(ROOT / "cpp"), "-B", str(place), *options, "-DEXPORTER_BENCHMARKS=ON"]
    for command in (configure, ["cmake", "--build", str(place)]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def export(model: str, folder: Path, device: str) -> list[Path]:
    """Export a model once; return the paths of its `.pt` and `.pt2`."""
    out = folder / f"{model}-bundle"
    if not out.exists():
        source = str(folder / "many.py:many") if model == "many" else model
        command = [sys.executable, "-m", "exporter", "export", source, "--weights", "random", "--device", device]
        command += ["--targets", "trace,compile", "--no-bench", "-q", "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [out / "trace.pt", out / "compile.pt2"]


def overhead(programs: Path, artifact: Path, device: str) -> bool:
    """Print the output of exporter-overhead; return whether the overhead is within the limit."""
    done = subprocess.run([programs / "exporter-overhead", artifact, device], stdout=subprocess.PIPE, text=True)
    print(done.stdout.replace(f"{artifact.parent.parent}/", ""), end="", flush=True)
    return done.returncode == 0


def scales(programs: Path, artifact: Path, rounds: int) -> bool:
    """Print the throughput of each number of callers and of processes; return whether the promise is kept."""
    cores = environment.usable_cpus()
    found: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    separate = []
    for _ in range(rounds):
        separate.append(throughput(programs, artifact, [1] * cores))
        for callers, rates in found.items():
            rates.append(throughput(programs, artifact, [callers]))
    allowed = statistics.median(separate)
    name = f"{artifact.parent.name.removesuffix('-bundle')} {artifact.stem}"
    rates = {callers: statistics.median(rates) for callers, rates in found.items()}
    print(f"{name}, one thread per call: {allowed:.1f} calls/s from {cores} processes; one artifact: ", end="")
    print(", ".join(f"{rate:.1f} from {callers}" for callers, rate in rates.items()))
    share = statistics.median(a / b for a, b in zip(found[max(CALLERS)], separate, strict=True))
    kept = share >= MIN_SHARE
    print(f"{'ok  ' if kept else 'OVER'}  {name}, {max(CALLERS)} callers over {cores} processes: ", end="")
    print(f"{share:.2f}, at least {MIN_SHARE:g}", flush=True)
    return kept


def throughput(programs: Path, artifact: Path, callers: list[int]) -> float:
    """Return the calls per second of concurrent processes; `callers` has the number of callers of each."""
    command = [programs / "exporter-run", "bench", artifact, "--threads", "1", "--warmup", "2", "--windows", "1"]
    running = [
        subprocess.Popen(
            [*command, "--callers", str(n), "--runs", str(RUNS // n), "--json"], stdout=subprocess.PIPE, text=True
        )
        for n in callers
    ]
    answers = [json.loads(process.communicate()[0]) for process in running]
    return sum(answer.get("calls_per_s") or 1e3 / answer["mean_ms"] for answer in answers)


if __name__ == "__main__":
    main()
