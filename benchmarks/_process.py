"""Whole processes, timed, with their peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One finished process: wall seconds and peak resident memory in MB (of that process alone)."""

    seconds: float
    peak_mb: float


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command to its end; RuntimeError when it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{errors.decode(errors='replace')[-3000:]}")
    return Run(seconds, usage.ru_maxrss * 1024 / 1e6)


def verdict(claims: Sequence[tuple[str, float, float]]) -> None:
    """Print each (claim, measured, limit) and exit with 1 when a limit is passed."""
    kept = True
    for text, measured, limit in claims:
        ok = measured <= limit
        kept &= ok
        print(f"{'ok  ' if ok else 'OVER'}  {text}: {measured:.3f}, at most {limit:g}")
    sys.exit(0 if kept else 1)
