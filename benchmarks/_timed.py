"""Time calls in rotation, in the measured process, as exporter times its sessions."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _rows import SAMPLES, Rows

from exporter import targets
from exporter.core import source_lines
from exporter.core.errors import JobError
from exporter.evidence import benchmark, stats
from exporter.workers.session import server


@dataclass(frozen=True)
class Call:
    """A function to time on a device."""

    run: Callable[[], object]
    device: str

    def _call(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.run()
        return ()

    def time(self, runs: int) -> list[float]:
        """Return the time in milliseconds of each of `runs` calls, with the device synchronized."""
        try:
            return server._time(targets.Loaded(self._call), (), runs, self.device)
        except Exception as error:
            raise JobError(source_lines.summary(error)) from error


@contextlib.contextmanager
def settings(device: str, threads: int, folder: str, cache: str = "") -> Iterator[Path]:
    """Set threads, float32 without TF32, and the compiler's cache; yield a scratch folder.

    The cache is empty unless `cache` is given.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache or f"{scratch}/cache"
        server.configure(targets.Options(device=device, threads=threads, scratch=scratch))
        yield Path(scratch)


def rotate(calls: Mapping[str, Callable[[], object]], budget: float, baseline: str, device: str) -> Rows:
    """Time calls in rotation and return their rows."""
    series = benchmark.measure({name: Call(run, device) for name, run in calls.items()}, budget, baseline)
    return {
        name: {"error": one.error}
        if one.error
        else {"windows": stats.thinned(one.windows, SAMPLES), "stable": one.stable}
        for name, one in series.items()
    }


def first_call(run: Callable[[], Any], device: str) -> tuple[Any, float]:
    """Return the result of a call and its time in seconds."""
    server._synchronize(device)
    started = time.perf_counter()
    result = run()
    server._synchronize(device)
    return result, time.perf_counter() - started
