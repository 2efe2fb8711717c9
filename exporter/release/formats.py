"""Render the plan or the result of a release as a table, JSON, Markdown for a job summary, or GitHub annotations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exporter.core import source_lines
from exporter.core.errors import UsageError
from exporter.core.records import SCHEMA
from exporter.release.file import ReleaseFileError
from exporter.release.plan import Gates, Step
from exporter.release.run import Row
from exporter.report import markdown as report
from exporter.report.rows import UNSTABLE, number, size_of

FORMS = ("table", "json", "md", "github")
HEADINGS = ("step", "parity", "p99", "vs eager", "size", "C++", "gates")


def render(rows: Sequence[Row], form: str, file: Path, out: Path) -> str:
    """Render the rows in one of FORMS, with a newline at the end. `file` is the release file, as the user wrote it."""
    if form == "json":
        return to_json(rows, file, out)
    if form == "md":
        return markdown(rows, file)
    return table(rows, out) + (_annotations(rows, file) if form == "github" else "")


def plan(steps: Sequence[Step], kept: set[str], form: str, file: Path, out: Path) -> str:
    """Render what a run would do in one of FORMS. `kept` names the steps that it would keep."""
    if form == "json":
        return _plan_json(steps, kept, file, out)
    from exporter.report import console

    headings = "step", "", "gates"
    lines: list[tuple[str, ...]] = [
        (step.name, "keep" if step.name in kept else "make", _wanted(step)) for step in steps
    ]
    count = f"{sum(step.name not in kept for step in steps)} of {len(steps)} steps to run"
    if form == "md":
        return "\n".join([f"### {report.escape(file.name)}: plan", "", *report.table(headings, lines), f"{count}.", ""])
    return console.table(headings, lines) + f"{count}, into {out}\n"


def _plan_json(steps: Sequence[Step], kept: set[str], file: Path, out: Path) -> str:
    found = [
        {
            "name": step.name,
            "run": step.name not in kept,
            "bundle": str(step.request.out),
            "line": step.line,
            "gates": dataclasses.asdict(step.gates),
        }
        for step in steps
    ]
    return json.dumps({"schema": SCHEMA, "file": str(file), "out": str(out), "steps": found}, indent=2) + "\n"


def table(rows: Sequence[Row], out: Path) -> str:
    """Return a table that fits the terminal, followed by a line for each failure."""
    from exporter.report import console

    text = console.table(HEADINGS, [_cells(row) for row in rows])
    for row in rows:
        text += "".join(source_lines.printable(f"{row.step.name}: {line}") + "\n" for line in _failures(row))
        text += f"  reproduce: {source_lines.printable(row.reproduce)}\n" if row.reproduce else ""
    return text + f"{_summary(rows)} Bundles: {out}\n"


def markdown(rows: Sequence[Row], file: Path) -> str:
    """Return a heading, the table, and a line for each failure."""
    lines = [f"### {report.escape(file.name)}: {'passed' if all(row.passed for row in rows) else 'FAILED'}", ""]
    lines += report.table(HEADINGS, [_cells(row) for row in rows])
    for row in rows:
        lines += [f"- **{report.escape(row.step.name)}**: {report.escape(line)}" for line in _failures(row)]
        lines += [f"  {report.code(row.reproduce)}"] if row.reproduce else []
    return "\n".join([*lines, "", _summary(rows), ""])


def to_json(rows: Sequence[Row], file: Path, out: Path) -> str:
    """Return everything known about each step, as JSON."""
    found = {
        "schema": SCHEMA,
        "file": str(file),
        "out": str(out),
        "status": "passed" if all(row.passed for row in rows) else "failed",
        "steps": [_plain(row) for row in rows],
    }
    return json.dumps(found, indent=2) + "\n"


def annotated(error: UsageError, file: Path) -> str:
    """Return a GitHub Actions workflow command for each problem of the release file, at the problem's line."""
    found = error.problems if isinstance(error, ReleaseFileError) else ((1, str(error)),)
    place = _property(str(file))
    return "".join(f"::error file={place},line={line}::{_data(_advised(text, error.remedy))}\n" for line, text in found)


def _annotations(rows: Sequence[Row], file: Path) -> str:
    """Return a GitHub Actions workflow command for each failure, at the line of its gate or model."""
    lines = []
    for row in rows:
        found = [(row.step.line, "failed", line) for line in ([_reason(row)] if row.reason else [])]
        found += [(row.step.gate_lines.get(c.gate, row.step.line), c.gate, c.text) for c in row.checks if not c.passed]
        for line, what, text in found:
            title = _property(f"{row.step.name}: {what}")
            lines.append(f"::error file={_property(str(file))},line={line},title={title}::{_data(text)}\n")
    return "".join(lines)


def _plain(row: Row) -> dict[str, Any]:
    return {
        "name": row.step.name,
        "status": "passed" if row.passed else "failed",
        "bundle": str(row.place) if row.place else None,
        "kept": row.kept,
        "line": row.step.line,
        "reason": row.reason,
        "remedy": row.remedy,
        "reproduce": row.reproduce,
        "measured": dataclasses.asdict(row.measured),
        "gates": [dataclasses.asdict(one) for one in row.checks],
    }


def _cells(row: Row) -> tuple[str, ...]:
    found = row.measured
    return (
        row.step.name,
        found.parity or "-",
        "-" if found.p99_ms is None else f"{number(found.p99_ms)} ms{'' if found.stable else ' ~'}",
        "-" if found.speedup is None else f"{found.speedup:.2f}x{'' if found.stable else ' ~'}",
        size_of(found.bytes) if found.bytes else "-",
        "yes" if found.cpp else "no",
        "pass" if row.passed else "FAIL",
    )


def _failures(row: Row) -> list[str]:
    return [_reason(row)] if row.reason else [f"{one.gate}: {one.text}" for one in row.checks if not one.passed]


def _reason(row: Row) -> str:
    return _advised(row.reason, row.remedy)


def _advised(cause: str, remedy: str) -> str:
    return cause + (f"; {remedy}" if remedy else "")


def _summary(rows: Sequence[Row]) -> str:
    kept = sum(row.kept for row in rows)
    text = f"{sum(row.passed for row in rows)} of {len(rows)} steps passed their gates"
    text += f"; {kept} kept from an earlier run." if kept else "."
    stable = all(row.measured.stable for row in rows)
    return text if stable else f"{text} {UNSTABLE} raise time_budget, or stop other programs."


def _wanted(step: Step) -> str:
    """List the gates that are set: `parity rounding, max_mb 5`."""
    unset = vars(Gates())
    gates = {name: value for name, value in vars(step.gates).items() if name != "over" and value != unset[name]}
    over = "" if step.gates.min_speedup is None else f" over {step.gates.over}"
    words = {name: name for name, value in gates.items() if value is True}
    words["min_speedup"] = f"min_speedup {step.gates.min_speedup}{over}"
    return ", ".join(words.get(name, f"{name} {value}") for name, value in gates.items())


def _data(text: str) -> str:
    """Escape the message of a workflow command, as actions/toolkit does in packages/core/src/command.ts."""
    return source_lines.printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property of a workflow command."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
