"""Render the report as text for a terminal."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from rich import box, markup
from rich.console import Console
from rich.table import Table

from exporter.core import precisions, source_lines
from exporter.core.records import UNCHECKED, Manifest, VariantRecord
from exporter.report import rows, summary

STYLES = {
    "exact": "green",
    "rounding": "green",
    "drift": "yellow",
    "quantized": "yellow",
    "pass": "green",
    "FAIL": "bold red",
    UNCHECKED: "yellow",
    "-": "",
}
WORDS = {"session", "parity", "contract", "gates", ""}  # columns of text, in addition to the first
PLAIN_WIDTH = 120
NARROWEST = 40  # a table of nine columns in fewer loses cells
WIDE = 100  # the width of a terminal that fits all columns
NARROW = ("min…max", "runs")  # columns hidden on narrower terminals


def render(manifest: Manifest, place: Path | None = None) -> str:
    """Render the whole report as text, in colour if stdout is a terminal."""
    console = _console()
    console.print()
    for line in rows.heading(manifest):
        console.print(escape(line), style="dim" if line != rows.heading(manifest)[0] else "bold")
    skip = NARROW if console.width < WIDE else ()
    console.print(_table(rows.headings(manifest), rows.rows(manifest), skip))
    if skip:
        console.print(f"{' and '.join(skip)} need a terminal of at least {WIDE} columns", style="dim")
    for headings, *lines in rows.others(manifest):
        console.print(_table(headings, lines))
    for names, variant in rows.failed_together(manifest):
        console.print(f"[red]{escape(names)}[/] {escape(variant.failure)}: {escape(variant.reason)}")
        found = [("remedy", variant.remedy), ("reproduce", variant.reproduce), ("rejected", rows.rejected(variant))]
        found.append(("find the operator", _bisect(manifest, variant)))
        for label, text in found:
            if text:
                console.print(f"  {label}: {escape(text)}", style="dim", soft_wrap=True)
    for variant in manifest.variants:
        for note in rows.notes(variant, manifest.threads):
            console.print(f"{escape(variant.name)}: {escape(note)}", style="dim")
    for hint in rows.hints(manifest):
        console.print(f"[yellow]warning:[/] {escape(hint)}")
    first, *rest = summary.sentences(manifest)
    console.print(escape(" ".join([first, *rest])), style="bold")
    for line in summary.alternatives(manifest):
        console.print(escape(line), style="dim", soft_wrap=True)
    if front := summary.unbeaten(manifest):
        console.print(summary.UNBEATEN, style="dim", soft_wrap=True)
        console.print(_table(front[0], front[1:]))
    if place is not None:
        console.print(f"Bundle: {escape(str(place))}", style="dim", soft_wrap=True)
    return _text(console)


def _bisect(manifest: Manifest, variant: VariantRecord) -> str:
    """Return how to find the operator at which a rejected artifact goes wrong; "" if bisect refuses the artifact."""
    if not variant.rejected or (variant.contract and variant.contract.entries):
        return ""
    fix = " --fix" if precisions.base(variant.name.partition("@")[2]) in precisions.MIXED else ""
    state = manifest.contract.state if manifest.contract else None
    first = "export with --state inputs, then " if state and state.kept == "inside" else ""
    return f"{first}exporter bisect BUNDLE {variant.name}{fix}"


def page(title: str, headings: tuple[str, ...], lines: list[tuple[str, ...]], remarks: list[str], verdict: str) -> str:
    """Render a title, a table if there are lines, remarks and a verdict."""
    console = _console()
    console.print()
    console.print(escape(title), style="bold")
    if lines:
        console.print(_table(headings, lines))
    for remark in remarks:
        console.print(escape(remark), style="dim", soft_wrap=True)
    console.print(escape(verdict), style="bold", soft_wrap=True)
    return _text(console)


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Render a table as wide as the terminal at most, or PLAIN_WIDTH without a terminal; in colour on a terminal."""
    console = _console()
    console.print(_table(headings, lines))
    return _text(console)


def escape(text: str) -> str:
    """Escape rich's markup and replace control characters."""
    return markup.escape(source_lines.printable(text))


def _console() -> Console:
    colour = sys.stdout.isatty()
    width = max(NARROWEST, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns)  # $COLUMNS, else the terminal's
    return Console(file=io.StringIO(), force_terminal=colour, width=width, highlight=False)


def _text(console: Console) -> str:
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]], skip: Container[str] = ()) -> Table:
    """Return a table of these columns except those in `skip`. Cells that are too wide wrap."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown = [i for i, heading in enumerate(headings) if heading not in skip]
    for index in shown:
        words = index == 0 or headings[index] in WORDS
        made.add_column(headings[index], justify="left" if words else "right", overflow="fold")
    for line in lines:
        made.add_row(*(_cell(headings[i], line[i]) for i in shown))
    return made


def _cell(heading: str, text: str) -> str:
    verdict = text.rpartition(" → ")[2]
    style = STYLES.get(verdict, "bold red" if heading == "parity" else "")
    return f"[{style}]{escape(text)}[/]" if style else escape(text)
