"""Compare the wall time of an export, with all its checks, and of a plain script with the same bare calls."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from _process import run, verdict

PLAIN = Path(__file__).with_name("_plain.py")


def main() -> None:
    """Run both in turn, each with an empty compiler cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    exporter = str(Path(sys.executable).with_name("exporter"))
    options = ["--weights", "random", "--targets", "trace,compile,onnx", "--no-bench", "-q"]
    times: dict[str, list[float]] = {"exporter": [], "plain": []}
    for _ in range(rounds):
        for name in times:
            with tempfile.TemporaryDirectory() as folder:
                command = [exporter, "export", "bert", *options, "--out", f"{folder}/bundle"]
                if name == "plain":
                    command = [sys.executable, str(PLAIN), folder]
                seconds = run(command, {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"}).seconds
            times[name].append(seconds)
            print(f"{name}: {seconds:.1f} s", flush=True)
    ratio = statistics.median(times["exporter"]) / statistics.median(times["plain"])
    verdict([("exporter over the plain script, ratio of wall times", ratio, 1.3)])


if __name__ == "__main__":
    main()
