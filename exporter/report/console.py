"""The table on a terminal."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from exporter.records import Manifest
from exporter.report import rows, summary

STYLES = {"exact": "green", "rounding": "green", "drift": "yellow", "quantized": "yellow"}
NUMERIC = {"median", "min…max", "runs", "vs eager", "size", "build"}
PLAIN_WIDTH = 120


def render(manifest: Manifest, place: Path | None = None) -> str:
    """The whole report as text, in colour where stdout is a terminal."""
    colour = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if colour else max(PLAIN_WIDTH, shutil.get_terminal_size().columns)
    console = Console(file=io.StringIO(), force_terminal=colour, width=width, highlight=False)
    console.print()
    for line in rows.heading(manifest):
        console.print(escape(line), style="dim" if line != rows.heading(manifest)[0] else "bold")
    console.print(_table(manifest, width))
    for variant in rows.failures(manifest):
        console.print(f"[red]{escape(variant.name)}[/] failed at {escape(variant.stage)}: {escape(variant.reason)}")
        for label, text in (("remedy", variant.remedy), ("again", variant.reproduce)):
            if text:
                console.print(f"  {label}: {escape(text)}", style="dim", soft_wrap=True)
    for variant in manifest.variants:
        for note in variant.notes:
            console.print(f"{escape(variant.name)}: {escape(note)}", style="dim")
    for hint in rows.hints(manifest):
        console.print(f"[yellow]warning:[/] {escape(hint)}")
    first, *rest = summary.sentences(manifest)
    console.print(escape(" ".join([first, *rest])), style="bold")
    for line in summary.alternatives(manifest):
        console.print(escape(line), style="dim", soft_wrap=True)
    if place is not None:
        console.print(f"Bundle: {escape(str(place))}", style="dim", soft_wrap=True)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def _table(manifest: Manifest, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    skip = {"min…max", "runs"} if width < 100 else set()
    shown = [i for i, heading in enumerate(rows.HEADINGS) if heading not in skip]
    for index in shown:
        heading = rows.HEADINGS[index]
        table.add_column(heading, justify="right" if heading in NUMERIC else "left", no_wrap=heading != "parity")
    parity = rows.HEADINGS.index("parity")
    for row in rows.rows(manifest):
        cells = [escape(cell) for cell in row]
        cells[parity] = f"[{STYLES.get(row[parity], 'bold red')}]{cells[parity]}[/]"
        table.add_row(*(cells[i] for i in shown))
    return table
