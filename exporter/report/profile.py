"""Render the result of `exporter profile` for a terminal, and write its files."""

from __future__ import annotations

import contextlib
import io
import linecache
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporter.bundle import layout
from exporter.core import filesystem, source_lines
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import from_json, to_json
from exporter.core.profile_records import Line, LineTime, Profile, Profiled, Steps
from exporter.core.records import EAGER
from exporter.report import profile_page, profile_traces, rows

NARROWEST, WIDEST = 40, 200
COLUMN = 13  # the width of a variant's column: 0.0250 100.0%
NAME = 24  # the least width of a line's name
CALLS, BACKWARD, GFLOP, MB, BANDWIDTH, RATE = "calls", "backward", "GFLOP", "MB", "GB/s", "FLOP/s"
WIDTHS = {CALLS: 5, BACKWARD: 8, GFLOP: 5, MB: 5, BANDWIDTH: 5, RATE: 6}
EDGES = 2
WIDE = 100  # the width of a terminal that has room for operators
OPTIONAL = (CALLS, MB, GFLOP, BACKWARD)  # columns that make room for a second variant, in this order
EAGERS = (EAGER, "train")  # names of variants that nothing compiles
VIEWS = {"view", "t", "transpose.int", "permute", "unsqueeze", "expand", "slice.Tensor", "select.int", "_unsafe_view"}
TENSORBOARD = "tensorboard"
NAME_OF_RECORD = "profile.json"


def begin(folder: Path) -> None:
    """Make the folder. Raise BundleError if nothing can be written there, before minutes of measuring are lost."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise filesystem.error(error, folder) from error


def _remove_earlier(folder: Path) -> None:
    """Remove the traces of the profile that is in the folder, if any, and nothing else."""
    try:
        known = from_json(Profile, (folder / NAME_OF_RECORD).read_bytes()).variants
    except (FileNotFoundError, ArtifactError):
        return
    for file in (folder / name for one in known for name in one.files):
        if file.resolve().is_relative_to(folder.resolve()):
            file.unlink(missing_ok=True)
            if file.parent != folder:
                with contextlib.suppress(OSError):  # it has other files
                    file.parent.rmdir()


def write(found: Profile, steps: Mapping[str, Steps], folder: Path) -> Profile:
    """Write the JSON, the page, and a Chrome trace and a TensorBoard folder for each variant.

    Return the profile with the names of the files. Raise BundleError if the folder cannot be written.
    """
    named = []
    found = replace(found, lines=tuple(replace(line, text=_source(line.place)) for line in found.lines))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_earlier(folder)
        for variant in found.variants:
            if variant.name not in steps:
                named.append(variant)
                continue
            stem = layout.stem(variant.name)
            files = (f"{stem}.trace.json", f"{TENSORBOARD}/{stem}/exporter.pt.trace.json")
            trace = profile_traces.chrome(found, variant, steps[variant.name])
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                filesystem.write_atomic(folder / file, trace)
            named.append(replace(variant, files=files))
        found = replace(found, variants=tuple(named))
        filesystem.write_atomic(folder / "profile.html", profile_page.render(found))
        filesystem.write_atomic(folder / NAME_OF_RECORD, to_json(found) + "\n")
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
    timed = sorted((one for one in found.variants if one.latency_ms), key=lambda one: one.latency_ms)
    console.print()
    what = f"a training step of {found.model}" if found.train else found.model
    _say(console, f"{what} on {found.device}, {found.threads} threads, {found.case}", "bold")
    beside: list[str] = []
    if timed:
        shown, beside = _fitting(found, timed, width)
        console.print(_table(found, shown, beside, top, width >= WIDE))
        if missing := [name for name in _beside(found) if name not in beside]:
            _say(console, f"a wider terminal shows {' and '.join(missing)} too; profile.html has all columns", "dim")
        if hidden := ", ".join(f"{one.name} ({one.latency_ms:.3g} ms)" for one in timed if one not in shown):
            _say(console, f"not shown: {hidden}; their lines need a wider terminal, or name the variants", "dim")
    rates = ", ".join(f"{rate / 1e9:,.3g} GFLOP/s in {name}" for name, rate in found.peaks.flop_per_s.items())
    reached = f"{found.peaks.bytes_per_s / 1e9:.3g} GB/s and {rates}"
    if timed:
        what = f"{CALLS if CALLS in beside else ''}, {BANDWIDTH} and {RATE}".removeprefix(", ")
        _say(console, f"{what} are those of {timed[0].name}; 100% is what this machine reached: {reached}", "dim")
    else:
        _say(console, f"this machine reached {reached}", "dim")
    for one in found.variants:
        _about(console, one)
    for note in found.notes:
        _say(console, note, "yellow")
    for sentence in found.advice:
        _say(console, sentence, "bold")
    for name in ("profile.html", "profile.json", "*.trace.json"):
        _say(console, str(folder / name), "cyan")
    _say(console, f"tensorboard --logdir {folder / TENSORBOARD}", "cyan")
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def _beside(found: Profile) -> list[str]:
    return [*([BACKWARD] if found.train else []), CALLS, GFLOP, MB, BANDWIDTH, RATE]


def _fitting(found: Profile, timed: Sequence[Profiled], width: int) -> tuple[list[Profiled], list[str]]:
    """Return the variants and the other columns for which there is room: the fastest, eager, then the next fastest."""
    beside = _beside(found)
    ordered = sorted(timed, key=lambda one: (one is not timed[0], one.name not in EAGERS))

    def room() -> int:
        return (width - NAME - EDGES - sum(WIDTHS[name] + 1 for name in beside)) // (COLUMN + 1)

    for name in OPTIONAL:
        if room() < min(2, len(timed)) and name in beside:
            beside.remove(name)
    shown = ordered[: max(1, room())]
    return [one for one in found.variants if one in shown], beside


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(source_lines.printable(text), style=style))


def _about(console: Console, one: Profiled) -> None:
    if one.reason:
        _say(console, f"{one.name} was not profiled: {one.reason}", "red")
        if one.remedy:
            _say(console, f"  remedy: {one.remedy}", "dim")
    if one.latency_ms:
        low, high = one.ci95_ms
        measured = f" ({low:.3g} to {high:.3g})" if high else ""
        copies = f"; copies take {one.copy_ms:.3g} ms" if one.copy_ms > 0.01 * one.latency_ms else ""
        slowed = f"; {one.slowed:.2g} times that with the profiler" if one.slowed > profile_page.SLOWED else ""
        _say(console, f"{one.name} in {one.session}: {one.latency_ms:.3g} ms{measured}{copies}{slowed}")
    if one.fallbacks:
        _say(console, f"{one.name}: falls back to {', '.join(one.fallbacks)}", "yellow")
    for note in one.notes:
        _say(console, f"{one.name}: {note}", "dim")


def _table(found: Profile, shown: Sequence[Profiled], beside: Sequence[str], top: int, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("line", overflow="fold", min_width=NAME)
    for one in shown:
        table.add_column(Text(one.name), justify="right", overflow="fold", min_width=COLUMN, max_width=COLUMN)
    for heading in beside:
        table.add_column(heading, justify="right", no_wrap=True, min_width=WIDTHS[heading])
    times = [{time.line: time for time in one.times} for one in shown]
    slowest = {line: max(own[line].share for own in times if line in own) for own in times for line in own}
    best = min(range(len(shown)), key=lambda index: shown[index].latency_ms)
    ordered = sorted(slowest, key=lambda line: -slowest[line])
    for line in ordered[:top]:
        cells = [_cell(own.get(line), one) for own, one in zip(times, shown, strict=True)]
        work = _work(found.lines[line], times[best].get(line))
        table.add_row(_name(found.lines[line], operators=wide), *cells, *(work[heading] for heading in beside))
    if rest := ordered[top:]:
        sums = [sum(own[line].ms for line in rest if line in own) for own in times]
        table.add_row(Text(f"{len(rest)} other lines"), *map(_milliseconds, sums, shown))
    table.add_row(Text("elsewhere"), *(_milliseconds(one.elsewhere_ms, one) for one in shown))
    table.add_row(Text("between operators"), *(_milliseconds(one.outside_ms, one) for one in shown))
    table.add_row(Text("latency, ms", style="bold"), *(_milliseconds(one.latency_ms, one, "bold") for one in shown))
    return table


def _name(line: Line, operators: bool) -> Text:
    """Return a line's module, place and, if asked for, operators, without views where there are others."""
    several = f" x{line.modules}" if line.modules > 1 else ""
    text = Text(source_lines.printable((line.module or "the model") + several))
    place = source_lines.near(line.place)
    if len(place) > (2 * NAME if operators else NAME - 2):
        place = f"\N{HORIZONTAL ELLIPSIS}/{place.rpartition('/')[2]}"
    text.append(source_lines.printable(f"\n  {place}"), style="cyan")
    if not operators:
        return text
    shown = [one for one in line.operators if one not in VIEWS] or list(line.operators)
    text.append(source_lines.printable(" " + ", ".join(one.partition(".")[0] for one in shown[:3])), style="dim")
    return text


def _cell(time: LineTime | None, one: Profiled) -> Text:
    return Text("-", style="dim") if time is None else _milliseconds(time.ms, one)


def _milliseconds(ms: float, one: Profiled, style: str = "") -> Text:
    return Text(f"{rows.number(ms)} {ms / one.latency_ms:6.1%}", style=style)


def _number(value: float) -> str:
    return (
        "<.001"
        if value < 0.001
        else f"{value:.3f}"
        if value < 1
        else f"{value:.3g}"
        if value < 1000
        else f"{value:.0f}"
    )


def _work(line: Line, time: LineTime | None) -> dict[str, str]:
    """Return the cells of a line's work, and how near the fastest variant comes to the machine's peaks."""
    return {
        BACKWARD: f"{time.backward_ms / time.ms:.0%}" if time and time.ms else "-",
        CALLS: str(time.calls) if time else "-",
        GFLOP: _number(line.flop / 1e9) if line.flop else "-",
        MB: _number(line.bytes / 1e6) if line.bytes else "-",
        BANDWIDTH: f"{time.bandwidth:.0%}" if time and time.bandwidth is not None else "-",
        RATE: f"{time.compute:.0%}" if time and time.compute is not None else "-",
    }
