"""Render the result of `exporter profile` for a terminal, and write its files."""

from __future__ import annotations

import io
import linecache
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporter.bundle import layout
from exporter.core import filesystem, source_lines
from exporter.core.json_codec import to_json
from exporter.core.profile_records import Line, LineTime, Profile, Profiled, Steps
from exporter.report import profile_page, profile_traces

NARROWEST, WIDEST = 40, 200
COLUMN = 13  # the width of a variant's column
BESIDE = 70  # the width of the other columns
TENSORBOARD = "tensorboard"


def write(found: Profile, steps: Mapping[str, Steps], folder: Path) -> Profile:
    """Write the JSON, the page, and a Chrome trace and a TensorBoard folder for each variant.

    Return the profile with the names of the files. Raise BundleError if the folder cannot be written.
    """
    named = []
    found = replace(found, lines=tuple(replace(line, text=_source(line.place)) for line in found.lines))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for variant in found.variants:
            if variant.name not in steps:
                named.append(variant)
                continue
            stem = layout.stem(variant.name).replace("/", "-")
            files = (f"{stem}.trace.json", f"{TENSORBOARD}/{stem}/exporter.pt.trace.json")
            trace = profile_traces.chrome(found, variant, steps[variant.name])
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                filesystem.write_atomic(folder / file, trace)
            named.append(replace(variant, files=files))
        found = replace(found, variants=tuple(named))
        filesystem.write_atomic(folder / "profile.html", profile_page.render(found))
        filesystem.write_atomic(folder / "profile.json", to_json(found) + "\n")
    except OSError as error:
        raise filesystem.error(error, folder) from error
    return found


def _source(place: str) -> str:
    file, _, line = place.rpartition(":")
    path = Path(file)
    if not path.is_absolute():
        path = next((Path(entry, file) for entry in sys.path if Path(entry, file).is_file()), path)
    return linecache.getline(str(path), int(line)).strip() if line.isdigit() else ""


def render(found: Profile, folder: Path, top: int) -> str:
    """Render the `top` slowest lines as text, in colour if stdout is a terminal."""
    width = min(WIDEST, max(NARROWEST, shutil.get_terminal_size((120, 24)).columns))
    console = Console(file=io.StringIO(), force_terminal=sys.stdout.isatty(), width=width, highlight=False)
    timed = [one for one in found.variants if one.latency_ms]
    shown = timed[: max(1, (width - BESIDE - found.train * COLUMN) // COLUMN)]
    console.print()
    what = f"a training step of {found.model}" if found.train else found.model
    _say(console, f"{what} on {found.device}, {found.threads} threads, {found.case}", "bold")
    if shown:
        console.print(_table(found, shown, top))
    for one in timed[len(shown) :]:
        _say(
            console, f"{one.name}: {one.latency_ms:.3g} ms; its lines need a wider terminal, or name the variant", "dim"
        )
    rates = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {name}" for name, rate in found.peaks.flop_per_s.items())
    _say(console, f"this machine reached {found.peaks.bytes_per_s / 1e9:.3g} GB/s and {rates}", "dim")
    for one in found.variants:
        _about(console, one)
    for sentence in found.advice:
        _say(console, sentence, "bold")
    for name in ("profile.html", "profile.json", "*.trace.json", TENSORBOARD):
        _say(console, str(folder / name), "cyan")
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(source_lines.printable(text), style=style))


def _about(console: Console, one: Profiled) -> None:
    if one.reason:
        _say(console, f"{one.name} was not profiled: {one.reason}", "red")
        if one.remedy:
            _say(console, f"  remedy: {one.remedy}", "dim")
    if one.latency_ms and one.copy_ms > 0.01 * one.latency_ms:
        _say(console, f"{one.name}: copies take {one.copy_ms:.3g} ms")
    if one.fallbacks:
        _say(console, f"{one.name}: falls back to {', '.join(one.fallbacks)}", "yellow")
    for note in one.notes:
        _say(console, f"{one.name}: {note}", "dim")


def _table(found: Profile, shown: list[Profiled], top: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("line", overflow="fold", min_width=24)
    for one in shown:
        table.add_column(Text(one.name), justify="right", no_wrap=True)
    for heading in (*(["backward"] if found.train else []), "calls", "GFLOP", "MB", "GB/s", "FLOP/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    times = [{time.line: time for time in one.times} for one in shown]
    slowest = {line: max(own[line].share for own in times if line in own) for own in times for line in own}
    best = min(range(len(shown)), key=lambda index: shown[index].latency_ms)
    ordered = sorted(slowest, key=lambda line: -slowest[line])
    for line in ordered[:top]:
        cells = [_cell(own.get(line), one) for own, one in zip(times, shown, strict=True)]
        time = times[best].get(line)
        backward = [f"{time.backward_ms / time.ms:.0%}" if time else "-"] if found.train else []
        table.add_row(_name(found.lines[line]), *cells, *backward, *_work(found.lines[line], time))
    if rest := ordered[top:]:
        sums = [sum(own[line].ms for line in rest if line in own) for own in times]
        table.add_row(Text(f"{len(rest)} other lines"), *map(_milliseconds, sums, shown))
    table.add_row(Text("elsewhere"), *(_milliseconds(one.elsewhere_ms, one) for one in shown))
    table.add_row(Text("between operators"), *(_milliseconds(one.outside_ms, one) for one in shown))
    table.add_row(Text("latency", style="bold"), *(Text(f"{one.latency_ms:.3g} ms", style="bold") for one in shown))
    return table


def _name(line: Line) -> Text:
    text = Text(source_lines.printable(line.module or "the model"))
    text.append(source_lines.printable(f"\n  {source_lines.near(line.place)}"), style="cyan")
    return text


def _cell(time: LineTime | None, one: Profiled) -> Text:
    return Text("-", style="dim") if time is None else _milliseconds(time.ms, one)


def _milliseconds(ms: float, one: Profiled) -> Text:
    return Text(f"{ms:.3f} {ms / one.latency_ms:4.0%}")


def _work(line: Line, time: LineTime | None) -> list[str]:
    """Return the cells of a line's work, and how near the fastest variant comes to the machine's peaks."""
    return [
        str(time.calls) if time else "-",
        f"{line.flop / 1e9:.3g}" if line.flop else "-",
        f"{line.bytes / 1e6:.3g}" if line.bytes else "-",
        f"{time.bandwidth:.0%}" if time and time.bandwidth is not None else "-",
        f"{time.compute:.0%}" if time and time.compute is not None else "-",
    ]
