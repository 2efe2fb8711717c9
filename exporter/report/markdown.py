"""The report as Markdown, for a README, a release or a job summary."""

from __future__ import annotations

from exporter.records import Manifest
from exporter.report import rows, summary


def render(manifest: Manifest) -> str:
    """Heading, table, failures, warnings and the recommendation."""
    first, *rest = rows.heading(manifest)
    lines = [f"### {first}", "", *(f"{line}  " for line in rest), ""]
    lines += _table(rows.headings(manifest), rows.rows(manifest))
    for headings, *cells in rows.others(manifest):
        lines += _table(headings, cells)
    for variant in rows.failures(manifest):
        remedy = f" {variant.remedy}." if variant.remedy else ""
        lines += [
            f"- **{variant.name}** failed at {variant.stage}: {_escape(variant.reason)}.{remedy} `{variant.reproduce}`"
        ]
    lines += [f"- {variant.name}: {_escape(note)}" for variant in manifest.variants for note in variant.notes]
    lines += [f"- warning: {_escape(hint)}" for hint in rows.hints(manifest)]
    lines += [
        "",
        f"**{' '.join(summary.sentences(manifest))}**",
        "",
        *summary.alternatives(manifest),
        "",
        *_front(manifest),
        f"Made by `{manifest.command}`.",
        "",
    ]
    return "\n".join(lines)


def _front(manifest: Manifest) -> list[str]:
    front = summary.unbeaten(manifest)
    return [summary.UNBEATEN, "", *_table(front[0], front[1:])] if front else []


def page(title: str, headings: tuple[str, ...], cells: list[tuple[str, ...]], remarks: list[str], verdict: str) -> str:
    """A table between its title and what is to be said of it."""
    lines = [f"### {_escape(title)}", "", *_table(headings, cells), *(f"- {_escape(one)}" for one in remarks)]
    return "\n".join([*lines, "", f"**{_escape(verdict)}**", ""])


def _table(headings: tuple[str, ...], cells: list[tuple[str, ...]]) -> list[str]:
    return [_line(headings), _line(("---",) * len(headings)), *map(_line, cells), ""]


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_escape, cells))} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
