"""Measure the time of `exporter --help` and the memory of the parent process of an export."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _process import peak_mb, run, verdict

RUNS = 10


def main() -> None:
    """Measure the median of several runs of --help, and the peak memory of the parent of one export."""
    exporter = str(Path(sys.executable).with_name("exporter"))
    seconds = statistics.median(run([exporter, "--help"]).seconds for _ in range(RUNS))
    with tempfile.TemporaryDirectory() as folder:
        export = [exporter, "export", "resnet18", "--weights", "random", "--targets", "trace,onnx"]
        parent = _own_peak([*export, "--time-budget", "0.5", "--out", f"{folder}/bundle", "-q"])
    verdict([("exporter --help, seconds", seconds, 0.25), ("peak memory of the parent, MB", parent, 150)])


def _own_peak(command: list[str]) -> float:
    """Return the peak resident memory in MB of the process alone; wait4 would include its children."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration):
            peak = peak_mb(process.pid)
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    return peak


if __name__ == "__main__":
    main()
