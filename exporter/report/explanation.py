"""Render the report of `exporter explain` for a terminal."""

from __future__ import annotations

import io
import shutil
import sys

from rich.console import Console
from rich.text import Text

from exporter import targets
from exporter.core import source_lines
from exporter.workers.explain import Explanation, Finding, Section

OPERATORS = "operator libraries that C++ must load"  # heading of the only section that belongs to no target
STYLES = {"ok": "green", "note": "yellow", "bad": "bold red"}
MARK = 6  # columns of the mark before each finding
NARROWEST, WIDEST = 40, 120


def render(explanation: Explanation) -> str:
    """Render the whole report as text, in colour if stdout is a terminal."""
    columns = shutil.get_terminal_size((WIDEST, 24)).columns
    width = min(WIDEST, max(NARROWEST, columns))
    console = Console(file=io.StringIO(), force_terminal=sys.stdout.isatty(), width=width, highlight=False)
    console.print()
    console.print(Text(source_lines.printable(_heading(explanation)), style="bold"))
    for section in explanation.sections:
        _print_section(console, section)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def _heading(explanation: Explanation) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in explanation.sizes.items())
    symbols = ", ".join(f"{name} {bounds}" for name, bounds in explanation.contract.symbols.items())
    return "; ".join(
        filter(None, (f"{explanation.model} on {explanation.device}", sizes, symbols and f"dynamic: {symbols}"))
    )


def _print_section(console: Console, section: Section) -> None:
    console.print()
    console.print(Text(_heading_of(section), style="bold"))
    for finding in section.findings:
        _print_finding(console, finding)


def _heading_of(section: Section) -> str:
    if section.name == "operators":
        return OPERATORS
    return source_lines.printable(targets.facts(section.name).question or section.name)


def _print_finding(console: Console, finding: Finding) -> None:
    text = Text(source_lines.printable(finding.text))
    if finding.place:
        text.append(source_lines.printable(f"\nat {source_lines.near(finding.place)}"), style="cyan")
    if finding.remedy:
        text.append(source_lines.printable(f"\nremedy: {finding.remedy}"), style="dim")
    lines = text.wrap(console, console.width - MARK - 2)
    for number, line in enumerate(lines):
        mark = Text(f"  {finding.level:<{MARK}}" if number == 0 else " " * (MARK + 2), style=STYLES[finding.level])
        console.print(mark + line, no_wrap=True, overflow="ignore", crop=False)
