"""Render raw.json as tables in Markdown. Needs no torch, so any machine can render what another one measured."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from exporter.core.timing_records import Timing
from exporter.evidence import benchmark
from exporter.report.rows import number, within

TITLES = {
    "a": "Latency at batch 1",
    "b": "torch.compile's modes",
    "c": "A training step",
    "d": "Growth with batch, sequence and layers",
}
NOTES = {
    "a": "Float32, random weights. All rows except the bare ones come from one `exporter export --dynamic none`, were "
    "checked for parity and timed in one rotation. Bare rows are torch's own calls, in a separate process and "
    "rotation; their speed-up is over bare eager. AOTInductor is torch.export's program, compiled ahead of time. "
    "Builds ran side by side; table d has builds that ran one at a time.",
    "b": "Float32, random weights. Each mode has a fresh process with an empty cache and is timed in turn with the "
    "function that is not compiled. The first call imports the compiler, compiles and runs.",
    "c": "Float32 without TF32, AdamW, no dropout. Each row has its own process, in which the first loss equaled "
    "eager's. A step is forward, loss, backward and optimizer. Peak memory covers the timed steps, not compilation: on "
    "a CPU the resident memory of the process, which includes what the compiler loaded, and on a GPU "
    "torch.cuda.max_memory_allocated.",
    "d": "Float32, random weights, fixed sizes. Each point has its own process with an empty cache; its rows are built "
    "one after another and timed in rotation. AOTInductor and onnxruntime each run torch.export first, and that time "
    "counts as build time.",
}
READING = (
    "Latency is the median of window medians, ± half of its 95% bootstrap interval. Speed-up is over the baseline of "
    "the same rotation, with its 95% interval. `~` means that the interval stayed wider than ±3%."
)
FACTS = {"build_s": "build, s", "first_s": "first call, s", "size_mb": "size, MB", "peak_mb": "peak memory, MB"}


def markdown(raw: dict[str, Any]) -> str:
    """Return all tables, each with its title and the machine that it was measured on."""
    parts = ["# Measured tables", "", READING, "", "Made by `python benchmarks/tables.py`.", ""]
    for name, table in raw.items():
        parts += [f"## {name}: {TITLES[name]}", "", f"{caption(table)}. {NOTES[name]}", ""]
        parts += _growth(table) if name == "d" else _groups(table)
        parts += _reasons(table)
    return "\n".join(parts)


def caption(table: dict[str, Any]) -> str:
    """Return the machine, versions and date of a table."""
    facts = table["environment"]
    cpu = f"{facts.get('cpu', 'CPU')}, {table['threads']} threads"
    versions = [f"{name} {facts[name]}" for name in ("torch", "onnxruntime-gpu", "onnxruntime") if name in facts]
    machine = cpu if table["device"] == "cpu" else f"{facts.get('gpu0', 'GPU')} ({cpu})"
    dates = dict.fromkeys((table.get("begun", table["created"])[:10], table["created"][:10]))
    quick = ["--quick"] if table["quick"] else []
    return "; ".join([machine, *versions, f"Python {facts.get('python', '?')}", " and ".join(dates), *quick])


def groups(table: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rotations of each group."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rotation in table["rotations"]:
        found.setdefault(rotation["group"], []).append(rotation)
    return found


def timings(rotation: dict[str, Any]) -> dict[str, Timing]:
    """Return the statistics of every measured row; they have no speed-up if the baseline was not measured."""
    series = {
        name: benchmark.Series(windows=row["windows"], stable=row["stable"])
        for name, row in rotation["rows"].items()
        if "windows" in row
    }
    baseline = series.get(rotation["baseline"])
    return {name: benchmark.timing(one, baseline or one) for name, one in series.items()}


def errors(table: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (group, row, reason) for every row that failed."""
    for rotation in table["rotations"]:
        for name, row in rotation["rows"].items():
            if "error" in row:
                yield where(rotation), name, row["error"]


def where(rotation: dict[str, Any]) -> str:
    """Return the group, with the point in it if there are several."""
    point = ", ".join(f"{name} {size}" for name, size in rotation.get("point", {}).items())
    return f"{rotation['group']}, {point}" if point else str(rotation["group"])


def latency(timing: Timing) -> str:
    """Return the latency as text, such as `12.3 ±0.1 ms`; in µs if it is short."""
    low, high = timing.ci95_ms
    factor, unit = (1000, "µs") if timing.median_ms < 0.1 else (1, "ms")
    mark = "" if timing.stable else " ~"
    return f"{within(timing.median_ms * factor, (high - low) / 2 * factor)} {unit}{mark}"


def _groups(table: dict[str, Any]) -> list[str]:
    lines = []
    for group, rotations in groups(table).items():
        rows = [row for rotation in rotations for row in rotation["rows"].values()]
        facts = [fact for fact in FACTS if any(fact in row.get("facts", {}) for row in rows)]
        lines += [f"### {group}", "", *_header("row", "latency", "speed-up", *(FACTS[fact] for fact in facts))]
        for rotation in rotations:
            found = timings(rotation)
            measured = rotation["baseline"] in found
            for name, row in rotation["rows"].items():
                given = row.get("facts", {})
                cells = [number(given[fact]) if fact in given else "" for fact in facts]
                lines.append(_line(name, *_cells(found.get(name), measured and name != rotation["baseline"]), *cells))
        lines.append("")
    return lines


def _cells(timing: Timing | None, compared: bool) -> tuple[str, str]:
    """Return the cells of latency and, if there is a baseline to compare with, speed-up."""
    if timing is None:
        return "not measured", ""
    if not compared or timing.speedup is None or timing.speedup_ci95 is None:
        return latency(timing), ""
    low, high = timing.speedup_ci95
    return latency(timing), f"{timing.speedup:.2f}x ({low:.2f} to {high:.2f})"


def _reasons(table: dict[str, Any]) -> list[str]:
    """List why rows were not measured, each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for where, row, reason in errors(table):
        found.setdefault((where, reason), []).append(row)
    lines = [
        f"- not measured: {where}: {'; '.join(rows)}: {_escape(textwrap.shorten(reason, 300))}"
        for (where, reason), rows in found.items()
    ]
    return [*lines, ""] if lines else []


def _growth(table: dict[str, Any]) -> list[str]:
    """Return two tables, of latency and build time, with a line for each point."""
    rotations = table["rotations"]
    names = list(dict.fromkeys(name for rotation in rotations for name in rotation["rows"]))
    built = [n for n in names if any("build_s" in r["rows"].get(n, {}).get("facts", {}) for r in rotations)]
    sizes = list(rotations[0]["point"])
    latencies = [f"### Latency, {rotations[0]['group']}", "", *_header(*sizes, *names)]
    builds = ["### Build time, s", "", *_header(*sizes, *built)]
    for rotation in rotations:
        point, found, rows = [str(size) for size in rotation["point"].values()], timings(rotation), rotation["rows"]
        latencies.append(_line(*point, *(latency(found[n]) if n in found else "not measured" for n in names)))
        seconds = [rows.get(n, {}).get("facts", {}).get("build_s") for n in built]
        builds.append(_line(*point, *("not measured" if s is None else number(s) for s in seconds)))
    return [*latencies, "", *builds, ""]


def _header(*cells: str) -> list[str]:
    return [_line(*cells), "|---" * len(cells) + "|"]


def _line(*cells: str) -> str:
    return f"| {' | '.join(map(_escape, cells))} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
