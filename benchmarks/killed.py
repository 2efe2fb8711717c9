"""A release that is killed (SIGKILL) at random moments and resumed each time, against one that nobody disturbs."""

from __future__ import annotations

import argparse
import json
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
# What no two runs have in common.
TIMES = {"lifecycle", "load_s", "first_call_ms", "peak_rss_mb", "reproduce", "sha256"}


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
        steps = len(_run(options.release, whole, None))
        seconds = time.monotonic() - began
        print(f"undisturbed: {steps} steps in {seconds:.0f} s", flush=True)
        made = []
        for kill in range(options.kills):
            after = moments.uniform(0, 2 * seconds / (options.kills + 2))
            made.append(len(_run(options.release, killed, after)))
            there = len(_keys(killed))
            print(f"kill {kill + 1}: after {after:.1f} s, {made[-1]} steps begun, {there} finished in all", flush=True)
        made.append(len(_run(options.release, killed, None)))
        print(f"resumed to its end: {made[-1]} steps begun", flush=True)
        differences = _differences(whole, killed)
        print(f"artifacts of equal bytes: {_equal_bytes(whole, killed)} of {steps}")
    print("\n".join(differences))
    redone = sum(made) - steps
    verdict([("differences", len(differences), 0), ("steps begun again", redone, options.kills)])


def _run(release: Path, out: Path, kill_after: float | None) -> set[str]:
    """Run or resume a release; the steps that it began. RuntimeError when it fails, or ends before it is killed."""
    command = [sys.executable, "-m", "exporter", "release", str(release), "--resume", "--out", str(out)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            process.wait(kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.seek(0)
        lines = said.read().splitlines()
    if process.returncode != (0 if kill_after is None else -signal.SIGKILL):
        raise RuntimeError("\n".join([f"exit code {process.returncode}", *lines[-30:]]))
    return {line.partition("] ")[2].split()[0] for line in lines if line.startswith("[")}


def _keys(out: Path) -> dict[str, str]:
    """The key of each finished step."""
    state = out / "release.json"
    found = json.loads(state.read_text())["steps"] if state.exists() else {}
    return {name: step["key"] for name, step in found.items()}


def _differences(one: Path, other: Path) -> list[str]:
    """What differs, in words: files, finished steps and their keys, and all of each variant but times."""
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
    return _without_times({name: found[name] for name in ("model", "contract", "golden", "variants", "status")})


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _equal_bytes(one: Path, other: Path) -> int:
    hashes = [
        [json.loads(file.read_text())["variants"][0]["artifact"]["sha256"] for file in sorted(o.rglob("manifest.json"))]
        for o in (one, other)
    ]
    return sum(a == b for a, b in zip(*hashes, strict=True))


if __name__ == "__main__":
    main()
