"""Run whole processes and measure their time and peak memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 20.0  # for an interrupted command to stop its children


@dataclass(frozen=True)
class Run:
    """One finished process: wall time in seconds and peak resident memory in MB, without its children."""

    seconds: float
    peak_mb: float


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command to its end. Raises RuntimeError if it fails."""
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


def output_of(command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a command, whatever its exit code.

    Interrupts the command after `limit_s` seconds and raises TimeoutError.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        try:
            return process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE_S)
            raise TimeoutError(f"it took longer than {limit_s:.0f} s") from None
        finally:
            process.kill()


def peak_mb(pid: int | str = "self") -> float:
    """Return the peak resident memory in MB of a running process, without its children."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


def verdict(claims: Sequence[tuple[str, float, float]]) -> None:
    """Print each (claim, measured, limit); exit with 1 if a limit is exceeded."""
    kept = True
    for text, measured, limit in claims:
        ok = measured <= limit
        kept &= ok
        print(f"{'ok  ' if ok else 'OVER'}  {text}: {measured:.3f}, at most {limit:g}")
    sys.exit(0 if kept else 1)
