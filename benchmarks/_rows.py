"""Rows of the tables. Each comes from a process that ends by a time limit; one that fails is a row with the reason."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.errors import ExporterError, JobError
from exporter.isolate import Zygote

LEAST_S = 5.0  # with less time left no process is begun
SAMPLES = 100  # of a window at most are kept: of a call of some microseconds there are thousands
Rows = dict[str, dict[str, Any]]  # by name: windows of milliseconds and facts, or the error


@dataclass(frozen=True)
class Bench:
    """Where and for how long rows are measured; `ends` is by time.monotonic()."""

    zygote: Zygote
    folder: Path
    device: str
    threads: int
    quick: bool
    budget_s: float
    row_limit_s: float
    ends: float

    def left(self) -> float:
        """Seconds until the run ends. JobError when there are none to begin anything with."""
        left = self.ends - time.monotonic()
        if left < LEAST_S:
            raise JobError("the time of the whole run was spent before")
        return left

    def measure(self, function: str, names: Sequence[str], **arguments: Any) -> Rows:
        """The rows that `module:function` gives in a fresh process; where it fails, its reason for each name."""
        print(f"  {'; '.join(names)}", flush=True)
        common = {"device": self.device, "threads": self.threads, "budget": self.budget_s, "folder": str(self.folder)}
        try:
            limit = min(self.row_limit_s, self.left())
            rows: Rows = self.zygote.run(
                "the process", function, common | arguments, self.folder / "children.log", limit
            )
        except ExporterError as error:
            return failed(names, error)
        return rows


def failed(names: Sequence[str], error: Exception) -> Rows:
    """Rows that have the reason alone."""
    return {name: {"error": " ".join(str(error).split())} for name in names}


def rotation(group: str, baseline: str, rows: Rows, **more: Any) -> dict[str, Any]:
    """Rows that may be compared: `baseline` is what the others' speed-ups are over."""
    return {"group": group, "baseline": baseline, "rows": rows, **more}


def thinned(windows: Sequence[Sequence[float]]) -> list[list[float]]:
    """At most SAMPLES of each window, evenly spaced, to five significant digits."""
    return [[float(f"{sample:.5g}") for sample in w[:: -(-len(w) // SAMPLES)]] for w in windows]
