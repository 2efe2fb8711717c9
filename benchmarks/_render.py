"""From raw.json to tables in Markdown. No torch here: what was measured on one machine is rendered on any other."""

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
    "a": "Float32, random weights; all rows but those called bare are from one `exporter export --dynamic none`, "
    "checked for parity and timed in one rotation. Bare rows are torch's own calls in a process and a rotation of "
    "their own; their speed-up is over the bare eager. AOTInductor is torch.export's program compiled ahead of time. "
    "Builds ran side by side: table d has them one at a time.",
    "b": "Float32, random weights; each mode in a fresh process with an empty cache, beside the function as it "
    "is. The first call imports the compiler, compiles and runs.",
    "c": "Float32 is without TF32. AdamW, no dropout; a row is a process of its own, and its first loss was eager's. "
    "The step is forward, loss, backward and optimizer. Peak memory is of the timed steps, not of compiling: "
    "the process's resident memory on a CPU, where what the compiler has loaded stays, and "
    "torch.cuda.max_memory_allocated on a GPU.",
    "d": "Float32, random weights, sizes fixed in the artifacts; a point is a process of its own with an empty cache, "
    "its rows built one after the other and timed in rotation. AOTInductor and onnxruntime start from a torch.export "
    "of their own, which counts as build.",
}
READING = (
    "Latency is the median of window medians, ± half of its 95% bootstrap interval; speed-up is over the baseline of "
    "the same rotation, with its 95% interval. `~`: the interval stayed wider than ±3%."
)
FACTS = {"build_s": "build, s", "first_s": "first call, s", "size_mb": "size, MB", "peak_mb": "peak memory, MB"}


def markdown(raw: dict[str, Any]) -> str:
    """All tables, each under its title with what it was measured on."""
    parts = ["# Measured tables", "", READING, "", "Made by `python benchmarks/tables.py`.", ""]
    for name, table in raw.items():
        parts += [f"## {name}: {TITLES[name]}", "", f"{caption(table)}. {NOTES[name]}", ""]
        parts += _growth(table) if name == "d" else _groups(table)
        parts += _reasons(table)
    return "\n".join(parts)


def caption(table: dict[str, Any]) -> str:
    """Machine, versions and date."""
    facts = table["environment"]
    cpu = f"{facts.get('cpu', 'CPU')}, {table['threads']} threads"
    versions = [f"{name} {facts[name]}" for name in ("torch", "onnxruntime-gpu", "onnxruntime") if name in facts]
    machine = cpu if table["device"] == "cpu" else f"{facts.get('gpu0', 'GPU')} ({cpu})"
    dates = dict.fromkeys((table.get("begun", table["created"])[:10], table["created"][:10]))
    quick = ["--quick"] if table["quick"] else []
    return "; ".join([machine, *versions, f"Python {facts.get('python', '?')}", " and ".join(dates), *quick])


def groups(table: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Rotations by the group that they belong to."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rotation in table["rotations"]:
        found.setdefault(rotation["group"], []).append(rotation)
    return found


def timings(rotation: dict[str, Any]) -> dict[str, Timing]:
    """The statistics of every row that was measured; without a baseline they have no speed-up."""
    series = {
        name: benchmark.Series(windows=row["windows"], stable=row["stable"])
        for name, row in rotation["rows"].items()
        if "windows" in row
    }
    baseline = series.get(rotation["baseline"])
    return {name: benchmark.timing(one, baseline or one) for name, one in series.items()}


def errors(table: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(group, row, reason) of every row that failed."""
    for rotation in table["rotations"]:
        for name, row in rotation["rows"].items():
            if "error" in row:
                yield where(rotation), name, row["error"]


def where(rotation: dict[str, Any]) -> str:
    """The group, and the point in it where there are several."""
    point = ", ".join(f"{name} {size}" for name, size in rotation.get("point", {}).items())
    return f"{rotation['group']}, {point}" if point else str(rotation["group"])


def latency(timing: Timing) -> str:
    """`12.3 ±0.1 ms`, or in µs."""
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
    """Latency, and speed-up where there is something to compare with."""
    if timing is None:
        return "not measured", ""
    if not compared or timing.speedup is None or timing.speedup_ci95 is None:
        return latency(timing), ""
    low, high = timing.speedup_ci95
    return latency(timing), f"{timing.speedup:.2f}x ({low:.2f} to {high:.2f})"


def _reasons(table: dict[str, Any]) -> list[str]:
    """Why rows were not measured, each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for where, row, reason in errors(table):
        found.setdefault((where, reason), []).append(row)
    lines = [
        f"- not measured: {where}: {'; '.join(rows)}: {_escape(textwrap.shorten(reason, 300))}"
        for (where, reason), rows in found.items()
    ]
    return [*lines, ""] if lines else []


def _growth(table: dict[str, Any]) -> list[str]:
    """Two tables: latency, and build time, with a line for each point."""
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
