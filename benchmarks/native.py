"""Compare C++ with Python, and exported programs with traces, on the CPU: steady calls, starts, memory."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _process import Run, run, verdict
from call import build

from exporter import targets
from exporter.bundle import layout
from exporter.core import environment
from exporter.evidence import benchmark, stats
from exporter.runs import session_checks
from exporter.workers.children import Zygote

RUNS = 5
PROCESSES = 10  # that share one exported program
ROOT = Path(__file__).parents[1]
FIRST_RESULT = """
import sys, torch
from safetensors.torch import load_file, save_file
inputs = load_file(sys.argv[2])
model = torch.jit.load(sys.argv[1])
with torch.no_grad():
    outputs = model(*(inputs[argument.name] for argument in model.forward.schema.arguments[1:]))
outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
save_file({str(index): output.contiguous() for index, output in enumerate(outputs)}, sys.argv[3])
"""
SAVE_INPUTS = """
import sys, torch
from pathlib import Path
from exporter.core import contract_files
from exporter.evidence import golden
from safetensors.torch import save_file
case = golden.read(Path(sys.argv[1])).cases[0]
names = [spec.name for spec in contract_files.read_zip(Path(sys.argv[2])).inputs]
save_file({name: tensor.contiguous() for name, tensor in zip(names, case.inputs)}, sys.argv[3])
"""


def main() -> None:
    """Measure each model's artifacts in both languages, in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["resnet18", "bert"])
    parser.add_argument("--time-budget", type=float, default=10.0)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cpp")
    arguments = parser.parse_args()
    build(arguments.build)
    runner = environment.find_runner()
    if runner is None:
        sys.exit("exporter-run is not built: make cpp")
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            place = Path(folder) / model
            command = [
                sys.executable,
                "-m",
                "exporter",
                "export",
                model,
                "--targets",
                "trace,compile,export",
                "--weights",
                "random",
            ]
            subprocess.run(
                [*command, "--device", "cpu", "--no-bench", "--out", str(place), "-q"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            claims += _steady(model, place, arguments.time_budget)
            claims.append(_beside_trace(model, place, arguments.time_budget))
            if model == "bert":  # LibTorch's own memory is larger than a smaller file
                claims.append(_shared(model, place, arguments.build))
            claims += _start(model, place, runner)
    verdict(claims)


def _steady(model: str, place: Path, budget: float) -> list[tuple[str, float, float]]:
    """Return the claims about steady calls and mapped CUDA libraries."""
    claims = []
    options = targets.Options(threads=environment.usable_cpus())
    with Zygote() as zygote:
        for record in layout.read_manifest(place).variants:
            log = place / "logs" / "native.log"
            sessions = {
                kind: start() for kind, start in session_checks.openers(zygote, place, record, options, log, 600)
            }
            for session in sessions.values():
                session.start()
            series = benchmark.measure(sessions, budget, "python")
            ratio = stats.ratio(series["native"].windows, series["python"].windows)
            low, high = stats.ratio_interval(series["native"].windows, series["python"].windows)
            print(
                f"{model} {record.name}: C++ over Python, steady calls: {ratio:.3f} ({low:.3f}…{high:.3f})", flush=True
            )
            claims.append((f"{model} {record.name}, steady calls, C++ over Python", ratio, 1.05))
            claims.append(
                (
                    f"{model} {record.name}, CUDA libraries mapped",
                    float(len(_cuda_libraries(sessions["native"].pid))),
                    0,
                )
            )
            for session in sessions.values():
                session.close()
    return claims


def _beside_trace(model: str, place: Path, budget: float) -> tuple[str, float, float]:
    """Return the claim about steady calls of the exported program and the frozen trace, both in C++, in turn."""
    options = targets.Options(threads=environment.usable_cpus())
    records = {record.name: record for record in layout.read_manifest(place).variants}
    with Zygote() as zygote:
        sessions = {}
        for name in ("trace", "export"):
            log = place / "logs" / f"{name}.log"
            sessions[name] = dict(session_checks.openers(zygote, place, records[name], options, log, 600))["native"]()
            sessions[name].start()
        series = benchmark.measure(sessions, budget, "trace")
        for session in sessions.values():
            session.close()
    ratio = stats.ratio(series["export"].windows, series["trace"].windows)
    low, high = stats.ratio_interval(series["export"].windows, series["trace"].windows)
    print(f"{model}: exported program over trace in C++, steady calls: {ratio:.3f} ({low:.3f}…{high:.3f})", flush=True)
    return f"{model}, steady calls in C++, export over trace, lower end", low, 1.0


def _shared(model: str, place: Path, programs: Path) -> tuple[str, float, float]:
    """Return the claim about the memory of processes that are forked after they opened an exported program."""
    artifact = place / "exported.pt2"
    done = subprocess.run(
        [programs / "exporter-forked", artifact, str(PROCESSES)], check=True, capture_output=True, text=True
    )
    pss, size = json.loads(done.stdout)["pss_mb"], artifact.stat().st_size / 1e6
    print(f"{model}: {PROCESSES} forked processes use {pss:.0f} MB, the file has {size:.0f} MB", flush=True)
    return f"{model} export, PSS of {PROCESSES} forked processes over the file", pss / size, 1.5


# libtorch_cpu.so of a CUDA wheel is linked to these two small libraries, so every process that loads it maps them.
LINKED_BY_TORCH_CPU = ("libcudart", "libcupti")
CUDA = ("cuda", "cudnn", "cublas", "cufft", "cusparse", "cusolver", "curand", "nccl", "nvrtc", "nvshmem")


def _cuda_libraries(pid: int) -> set[str]:
    """Return the CUDA libraries that a process has mapped, without LINKED_BY_TORCH_CPU."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    names = {Path(line.split()[-1]).name for line in maps if "/" in line}
    return {n for n in names if any(word in n for word in CUDA) and not n.startswith(LINKED_BY_TORCH_CPU)}


def _start(model: str, place: Path, runner: Path) -> list[tuple[str, float, float]]:
    """Return the claims about the time and memory from start to first result."""
    artifact, inputs, outputs = place / "trace.pt", place / "inputs.safetensors", str(place / "outputs.safetensors")
    subprocess.run(
        [sys.executable, "-c", SAVE_INPUTS, str(layout.golden(place)), str(artifact), str(inputs)], check=True
    )
    python = [sys.executable, "-W", "ignore", "-c", FIRST_RESULT, str(artifact), str(inputs), outputs]
    native = [str(runner), "run", str(artifact), "--inputs", str(inputs), "--outputs", outputs]
    runs: dict[str, list[Run]] = {"python": [], "native": []}
    for _ in range(RUNS):
        runs["python"].append(run(python))
        runs["native"].append(run(native))
    seconds = {name: statistics.median(r.seconds for r in found) for name, found in runs.items()}
    memory = {name: statistics.median(r.peak_mb for r in found) for name, found in runs.items()}
    print(
        f"{model} trace: start to first result {seconds['python']:.2f} s in Python, {seconds['native']:.2f} s in C++; "
        f"peak {memory['python']:.0f} and {memory['native']:.0f} MB",
        flush=True,
    )
    return [
        (f"{model} trace, start to first result, C++ over Python", seconds["native"] / seconds["python"], 0.35),
        (f"{model} trace, peak memory, C++ over Python", memory["native"] / memory["python"], 0.4),
    ]


if __name__ == "__main__":
    main()
