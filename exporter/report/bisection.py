"""Render the result of `exporter bisect` for a terminal."""

from __future__ import annotations

import io
import math
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from exporter.core import precisions, source_lines
from exporter.workers.bisect import Bisection, Fix, Node

NARROWEST, WIDEST = 40, 120


def render(found: Bisection, folder: Path) -> str:
    """Render the result as text, in colour if stdout is a terminal. `folder` is where its files are."""
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size((WIDEST, 24)).columns))
    console = Console(file=io.StringIO(), force_terminal=sys.stdout.isatty(), width=width, highlight=False)
    console.print()
    _line(console, f"{found.variant} of {found.model}, {found.case}", "bold")
    _line(console, f"{found.verdict}: {found.sentence}", "green" if found.passes else "bold red")
    for node in found.nodes:
        _node(console, node)
    if found.not_finite:
        _line(console, f"The first NaN or infinity comes from {found.not_finite.name}.")
    for note in found.notes:
        _line(console, note, "yellow")
    if found.fix and found.fix.is_pointless:
        _line(console, _pointless(found.variant, found.fix), "yellow")
    elif found.fix:
        _line(console, f"It passes with {found.fix.options}{_cost(found.fix)}.", "green")
        if name := _name(found.variant, found.fix):
            _line(console, f"As a variant of its own, beside {found.variant}: {name}", "green")
    if found.remedy:
        _line(console, f"remedy: {found.remedy}", "dim")
    if found.builds > 1:
        _line(console, f"{found.builds} builds, for a program of {found.size} nodes", "dim")
    for name in found.files:
        _line(console, f"{folder / name}", "cyan")
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def _name(variant: str, fix: Fix) -> str:
    """Return the name of the variant with the layers of a fix in float32; "" if it needs other options too."""
    named, at, precision = variant.partition("@")
    mixed = precisions.mixed(precision, fix.keep_float)
    alone = fix == Fix(fix.keep_float, fix.slower, kept_weights=fix.kept_weights) and fix.keep_float
    return f"{named}@{mixed}" if at and alone and precisions.is_valid(mixed) else ""


def _pointless(variant: str, fix: Fix) -> str:
    """Return why a fix is not recommended."""
    precision = variant.partition("@")[2]
    return (
        f"It passes only with {fix.options}{_cost(fix)}. These layers hold {fix.kept_weights:.0%} of the weights, so "
        f"hardly anything is left in {precision}: export another target in it, or this one in another precision."
    )


def _cost(fix: Fix) -> str:
    return f", and takes {fix.slower:.2f} times as long" if fix.slower is not None else ""


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(source_lines.printable(text), style=style))


def _node(console: Console, node: Node) -> None:
    text = Text("  ")
    text.append(source_lines.printable(node.operator or node.name), style="bold")
    if node.module:
        text.append(source_lines.printable(f" in {node.module}"))
    if node.introduced is not None and math.isfinite(node.introduced):
        text.append(f", introduces {node.introduced:.3g} times eager's error")
    if node.inherited is not None:
        text.append(f" ({node.inherited:.3g} in the run)")
    if node.place:
        text.append(source_lines.printable(f"\n    at {source_lines.near(node.place)}"), style="cyan")
    console.print(text)
