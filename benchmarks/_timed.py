"""In the process that is measured: calls timed in rotation, as exporter times its sessions."""

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
    """Something to time."""

    run: Callable[[], object]
    device: str

    def _call(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.run()
        return ()

    def time(self, runs: int) -> list[float]:
        """Milliseconds of each of `runs` calls, the device synchronised."""
        try:
            return server._time(targets.Loaded(self._call), (), runs, self.device)
        except Exception as error:
            raise JobError(source_lines.summary(error)) from error


@contextlib.contextmanager
def settings(device: str, threads: int, folder: str, cache: str = "") -> Iterator[Path]:
    """Threads, float32 that is float32, a folder for what is temporary; the compiler's cache is `cache`, or empty."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache or f"{scratch}/cache"
        server.configure(targets.Options(device=device, threads=threads, scratch=scratch))
        yield Path(scratch)


def rotate(calls: Mapping[str, Callable[[], object]], budget: float, baseline: str, device: str) -> Rows:
    """Rows of calls measured side by side."""
    series = benchmark.measure({name: Call(run, device) for name, run in calls.items()}, budget, baseline)
    return {
        name: {"error": one.error}
        if one.error
        else {"windows": stats.thinned(one.windows, SAMPLES), "stable": one.stable}
        for name, one in series.items()
    }


def first_call(run: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What a call gives, and its seconds."""
    server._synchronize(device)
    started = time.perf_counter()
    result = run()
    server._synchronize(device)
    return result, time.perf_counter() - started
