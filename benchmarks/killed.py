"""Compare a release that is killed (SIGKILL) at random moments and resumed with one that is not interrupted."""

from __future__ import annotations

import argparse
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _process import verdict
from _releases import EXAMPLE, differences, equal_bytes, keys


def main() -> None:
    """Run both releases and compare their steps, files and manifests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", type=Path, default=EXAMPLE)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        began = time.monotonic()
        steps = len(_run(options.release, whole))
        seconds = time.monotonic() - began
        print(f"uninterrupted: {steps} steps in {seconds:.0f} s", flush=True)
        started = []
        for kill in range(options.kills):
            least, after = steps * kill // options.kills, moments.uniform(0, 2 * seconds / steps)
            started.append(len(_run(options.release, killed, (least, after, steps - 1))))
            progress = f"{started[-1]} steps started, {len(keys(killed))} finished in total"
            print(f"kill {kill + 1}, {after:.1f} s after {least} steps were finished: {progress}", flush=True)
        started.append(len(_run(options.release, killed)))
        print(f"resumed to the end: {started[-1]} steps started", flush=True)
        different = differences(whole, killed)
        print(f"byte-for-byte equal artifacts: {equal_bytes(whole, killed)} of {steps}")
    print("\n".join(different))
    redone = sum(started) - steps
    verdict([("differences", len(different), 0), ("repeated steps", redone, options.kills)])


def _run(release: Path, out: Path, kill: tuple[int, float, int] | None = None) -> set[str]:
    """Run or resume a release; return the steps that it started.

    `kill` is (least, after, most): the release is killed `after` seconds after a total of `least` steps is finished, or
    as soon as `most` are. Raises RuntimeError if the release fails, or ends before it is killed.
    """
    command = [sys.executable, "-m", "exporter", "release", str(release), "--resume", "--out", str(out)]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        end = math.inf
        while process.poll() is None:
            if kill is not None:
                least, after, most = kill
                if len(keys(out)) >= least:
                    end = min(end, time.monotonic() + after)
                if time.monotonic() > end or len(keys(out)) >= most:
                    process.kill()
            time.sleep(0.05)
        output.seek(0)
        lines = output.read().splitlines()
    if process.returncode != (0 if kill is None else -signal.SIGKILL):
        raise RuntimeError("\n".join([f"exit code {process.returncode}", *lines[-30:]]))
    return {line.partition("] ")[2].split()[0] for line in lines if line.startswith("[")}


if __name__ == "__main__":
    main()
