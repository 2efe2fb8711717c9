"""A release that is killed (SIGKILL) at random moments and resumed each time, against one that nobody disturbs."""

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
    """Both, compared: the steps that are finished, and what each manifest says of its variant."""
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
        print(f"undisturbed: {steps} steps in {seconds:.0f} s", flush=True)
        made = []
        for kill in range(options.kills):
            least, after = steps * kill // options.kills, moments.uniform(0, 2 * seconds / steps)
            made.append(len(_run(options.release, killed, (least, after, steps - 1))))
            there = len(keys(killed))
            told = f"{after:.1f} s after {least} steps were finished: {made[-1]} begun, {there} finished in all"
            print(f"kill {kill + 1}, {told}", flush=True)
        made.append(len(_run(options.release, killed)))
        print(f"resumed to its end: {made[-1]} steps begun", flush=True)
        different = differences(whole, killed)
        print(f"artifacts of equal bytes: {equal_bytes(whole, killed)} of {steps}")
    print("\n".join(different))
    redone = sum(made) - steps
    verdict([("differences", len(different), 0), ("steps begun again", redone, options.kills)])


def _run(release: Path, out: Path, kill: tuple[int, float, int] | None = None) -> set[str]:
    """Run or resume a release; the steps that it began. RuntimeError when it fails, or ends before it is killed.

    `kill` is (least, after, most): `after` seconds after `least` steps are finished in all, or once `most` are.
    """
    command = [sys.executable, "-m", "exporter", "release", str(release), "--resume", "--out", str(out)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        end = math.inf
        while process.poll() is None:
            if kill is not None:
                least, after, most = kill
                if len(keys(out)) >= least:
                    end = min(end, time.monotonic() + after)
                if time.monotonic() > end or len(keys(out)) >= most:
                    process.kill()
            time.sleep(0.05)
        said.seek(0)
        lines = said.read().splitlines()
    if process.returncode != (0 if kill is None else -signal.SIGKILL):
        raise RuntimeError("\n".join([f"exit code {process.returncode}", *lines[-30:]]))
    return {line.partition("] ")[2].split()[0] for line in lines if line.startswith("[")}


if __name__ == "__main__":
    main()
