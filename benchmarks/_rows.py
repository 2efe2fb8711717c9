"""Rows of the tables. Each comes from a process that ends by a time limit; one that fails is a row with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.core.errors import ExporterError, JobError
from exporter.workers.children import Zygote

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
    kept: Sequence[dict[str, Any]] = field(default_factory=list)  # rotations of an earlier run, not to be made again

    def left(self) -> float:
        """Seconds until the run ends. JobError when there are none to begin anything with."""
        left = self.ends - time.monotonic()
        if left < LEAST_S:
            raise JobError("the time of the whole run was spent before")
        return left

    def measure(self, function: str, names: Sequence[str], label: str = "", **arguments: Any) -> Rows:
        """The rows that `module:function` gives in a fresh process; where it fails, its reason for each name."""
        print(f"  {label}: {'; '.join(names)}".replace(" : ", " "), flush=True)
        common = {"device": self.device, "threads": self.threads, "budget": self.budget_s, "folder": str(self.folder)}
        try:
            limit = min(self.row_limit_s, self.left())
            rows: Rows = self.zygote.run(
                "the process", function, common | arguments, self.folder / "children.log", limit
            )
        except ExporterError as error:
            return failed(names, error)
        return rows

    def rotation(self, group: str, baseline: str, rows: Callable[[], Rows], **more: Any) -> dict[str, Any]:
        """Rows that may be compared: `baseline` is what the others' speed-ups are over. A kept one is not measured."""
        head = {"group": group, "baseline": baseline, **more}
        same = (each for each in self.kept if head.items() <= each.items())
        return next(same, None) or {**head, "rows": rows()}


def failed(names: Sequence[str], error: Exception) -> Rows:
    """Rows that have the reason alone."""
    return {name: {"error": " ".join(str(error).split())} for name in names}


def complete(rotation: dict[str, Any]) -> bool:
    """Whether each of its rows was measured."""
    return not any("error" in row for row in rotation["rows"].values())
