"""Measure how often two copies of the same artifact are reported as different.

Each repetition times both in rotation, as `export` does. They are different if the intervals of the medians do not
overlap; the report would then call one faster. Exits with 1 if that happens in more than 5% of the repetitions.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from exporter import targets
from exporter.bundle import layout
from exporter.core import environment
from exporter.evidence import benchmark
from exporter.runs import session_checks
from exporter.workers.children import Zygote

ALLOWED = 0.05


def main() -> None:
    """Export one model, open its artifact twice, and time both repeatedly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--target", default="trace")
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--time-budget", type=float, default=1.0, help="seconds per copy, as in `exporter export`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Zygote() as zygote:
        out = Path(folder) / "bundle"
        command = [
            sys.executable,
            "-m",
            "exporter",
            "export",
            arguments.model,
            "--weights",
            "random",
            "--no-bench",
            "-q",
        ]
        subprocess.run(
            [*command, "--targets", arguments.target, "--out", str(out)], check=True, stdout=subprocess.DEVNULL
        )
        record = next(v for v in layout.read_manifest(out).variants if v.name == arguments.target)
        options = targets.Options(threads=environment.usable_cpus())
        copies = {}
        for name in ("a", "b"):
            _, open_session = next(
                session_checks.openers(zygote, out, record, options, Path(folder) / f"{name}.log", 300.0)
            )
            copies[name] = open_session()
            copies[name].start()
        sys.exit(repeat(copies, arguments))


def repeat(copies: dict[str, session_checks.Session], arguments: argparse.Namespace) -> int:
    """Print each difference and their rate; return the exit code."""
    different = 0
    for number in range(arguments.repetitions):
        series = benchmark.measure(copies, arguments.time_budget, "a")
        a, b = (benchmark.timing(series[name], series["a"]) for name in copies)
        if a.ci95_ms[1] < b.ci95_ms[0] or b.ci95_ms[1] < a.ci95_ms[0]:
            different += 1
            print(
                f"{number}: {a.median_ms:.3f} {_pair(a.ci95_ms)} and {b.median_ms:.3f} {_pair(b.ci95_ms)} ms",
                flush=True,
            )
    rate = different / arguments.repetitions
    print(
        f"{different} of {arguments.repetitions} repetitions reported two copies of {arguments.target} as different",
        end="",
    )
    print("" if rate <= ALLOWED else "  OVER")
    return int(rate > ALLOWED)


def _pair(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.3f}, {interval[1]:.3f}]"


if __name__ == "__main__":
    main()
