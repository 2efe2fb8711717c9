"""Progress on stderr: a line per variant with its stage and a clock; plain lines if stderr is not a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from exporter.core import source_lines
from exporter.core.progress import Listener
from exporter.core.records import VariantRecord
from exporter.report.console import escape


@contextmanager
def listener(quiet: bool) -> Iterator[Listener]:
    """Yield the listener for this kind of stderr."""
    if quiet:
        yield Listener()
    elif not sys.stderr.isatty():
        yield PlainLines()
    else:
        lines = LiveLines()
        with Live(get_renderable=lines.render, console=Console(stderr=True), refresh_per_second=2, transient=True):
            yield lines


class PlainLines(Listener):
    """One line for each step."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last: dict[str, str] = {}

    def stage(self, variant: str, stage: str) -> None:
        """Print a stage that is new."""
        if self._last.get(variant) != stage and stage != "waiting":
            self._print(variant, stage)
        self._last[variant] = stage

    def done(self, record: VariantRecord) -> None:
        """Print the variant's status, and its reason if it failed."""
        self._print(record.name, f"{record.status}{': ' + record.reason if record.reason else ''}")

    def _print(self, variant: str, text: str) -> None:
        line = source_lines.printable(f"{variant:<24} {text}")
        print(f"[{time.monotonic() - self._started:6.1f} s] {line}", file=sys.stderr, flush=True)


class LiveLines(Listener):
    """All variants at once, each with a clock for its stage."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[str, float]] = {}

    def stage(self, variant: str, stage: str) -> None:
        """Restart the variant's clock when its stage changes."""
        with self._lock:
            if self._rows.get(variant, ("", 0.0))[0] != stage:
                self._rows[variant] = (stage, time.monotonic())

    def done(self, record: VariantRecord) -> None:
        """Show the variant's status."""
        with self._lock:
            self._rows[record.name] = (record.status, 0.0)

    def render(self) -> Table:
        """Return the current rows."""
        table = Table.grid(padding=(0, 2))
        with self._lock:
            for variant, (stage, since) in self._rows.items():
                clock = f"{time.monotonic() - since:.0f} s" if since and stage != "waiting" else ""
                style = {"passed": "green", "failed": "red", "waiting": "dim"}.get(stage, "cyan")
                table.add_row(escape(variant), f"[{style}]{escape(stage)}[/]", clock)
        return table
