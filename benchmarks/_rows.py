"""Rows of the tables. Each is measured in a process with a time limit; if it fails, the row has the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.core.errors import ExporterError, JobError
from exporter.workers.children import Zygote

LEAST_S = 5.0  # no process is started with less time left
SAMPLES = 100  # kept per window; a call of a few microseconds has thousands
Rows = dict[str, dict[str, Any]]  # by name: windows (in ms) and facts, or the error


@dataclass(frozen=True)
class Bench:
    """Where and for how long rows are measured. `ends` is a time of time.monotonic()."""

    zygote: Zygote
    folder: Path
    device: str
    threads: int
    quick: bool
    budget_s: float
    row_limit_s: float
    ends: float
    kept: Sequence[dict[str, Any]] = field(default_factory=list)  # rotations of an earlier run, not measured again

    def left(self) -> float:
        """Return the seconds until the run ends. Raises JobError if too few are left to start a process."""
        left = self.ends - time.monotonic()
        if left < LEAST_S:
            raise JobError("the whole run had no time left")
        return left

    def measure(self, function: str, names: Sequence[str], label: str = "", **arguments: Any) -> Rows:
        """Return the rows that `module:function` returns in a fresh process; if it fails, each name has the reason."""
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
        """Return a rotation: rows with speed-ups over `baseline`. A rotation that was kept is not measured again."""
        head = {"group": group, "baseline": baseline, **more}
        kept = (each for each in self.kept if head.items() <= each.items())
        return next(kept, None) or {**head, "rows": rows()}


def failed(names: Sequence[str], error: Exception) -> Rows:
    """Return rows that have only the reason."""
    return {name: {"error": " ".join(str(error).split())} for name in names}


def complete(rotation: dict[str, Any]) -> bool:
    """Return whether every row of a rotation was measured."""
    return not any("error" in row for row in rotation["rows"].values())
