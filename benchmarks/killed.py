"""A release that is killed (SIGKILL) at random moments and resumed each time, against one that nobody disturbs."""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _process import verdict

EXAMPLE = Path(__file__).parent.parent / "examples" / "release.toml"
# What no two runs have in common: times, memory, places, and the bytes of AOTInductor's packages.
OWN = {"lifecycle", "load_s", "first_call_ms", "peak_rss_mb", "reproduce", "sha256", "bytes"}


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
            after = moments.uniform(0, 2 * seconds / (options.kills + 2))
            made.append(len(_run(options.release, killed, after, steps * (kill + 1) // (options.kills + 1))))
            there = len(_keys(killed))
            print(f"kill {kill + 1}: after {after:.1f} s, {made[-1]} steps begun, {there} finished in all", flush=True)
        made.append(len(_run(options.release, killed)))
        print(f"resumed to its end: {made[-1]} steps begun", flush=True)
        differences = _differences(whole, killed)
        print(f"artifacts of equal bytes: {_equal_bytes(whole, killed)} of {steps}")
    print("\n".join(differences))
    redone = sum(made) - steps
    verdict([("differences", len(differences), 0), ("steps begun again", redone, options.kills)])


def _run(release: Path, out: Path, kill_after: float = math.inf, enough: float = math.inf) -> set[str]:
    """Run or resume a release; the steps that it began. RuntimeError when it fails, or ends before it is killed.

    It is killed after so many seconds, or once so many steps are finished, whichever comes first.
    """
    command = [sys.executable, "-m", "exporter", "release", str(release), "--resume", "--out", str(out)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        end = time.monotonic() + kill_after
        while process.poll() is None:
            if time.monotonic() > end or len(_keys(out)) > enough:
                process.kill()
            time.sleep(0.05)
        said.seek(0)
        lines = said.read().splitlines()
    if process.returncode != (0 if kill_after == math.inf else -signal.SIGKILL):
        raise RuntimeError("\n".join([f"exit code {process.returncode}", *lines[-30:]]))
    return {line.partition("] ")[2].split()[0] for line in lines if line.startswith("[")}


def _keys(out: Path) -> dict[str, str]:
    """The key of each finished step."""
    state = out / "release.json"
    found = json.loads(state.read_text())["steps"] if state.exists() else {}
    return {name: step["key"] for name, step in found.items()}


def _differences(one: Path, other: Path) -> list[str]:
    """What differs, in words: files, keys of finished steps, and all of each variant but what is its run's own."""
    found = [f"only in one: {name}" for name in sorted(_names(one) ^ _names(other))]
    found += [] if _keys(one) == _keys(other) else ["release.json"]
    for file in sorted(one.rglob("manifest.json")):
        name = file.relative_to(one)
        if (other / name).exists() and _settled(file) != _settled(other / name):
            found.append(str(name))
    return found


def _names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


def _settled(manifest: Path) -> Any:
    """What a manifest says that does not depend on when it was made."""
    found = json.loads(manifest.read_text())
    return _common({name: found[name] for name in ("model", "contract", "golden", "variants", "status")})


def _common(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _common(item) for key, item in value.items() if key not in OWN}
    return [_common(item) for item in value] if isinstance(value, list) else value


def _equal_bytes(one: Path, other: Path) -> int:
    hashes = [
        [json.loads(file.read_text())["variants"][0]["artifact"]["sha256"] for file in sorted(o.rglob("manifest.json"))]
        for o in (one, other)
    ]
    return sum(a == b for a, b in zip(*hashes, strict=True))


if __name__ == "__main__":
    main()
