"""The report as Markdown, for a README, a release or a job summary."""

from __future__ import annotations

import re

from exporter.core import source_lines
from exporter.core.records import Manifest
from exporter.report import rows, summary


def render(manifest: Manifest) -> str:
    """Heading, table, failures, warnings and the recommendation."""
    first, *rest = rows.heading(manifest)
    lines = [f"### {escape(first)}", "", *(f"{escape(line)}  " for line in rest), ""]
    lines += table(rows.headings(manifest), rows.rows(manifest))
    for headings, *cells in rows.others(manifest):
        lines += table(headings, cells)
    for variant in rows.failures(manifest):
        remedy = f" {escape(variant.remedy)}." if variant.remedy else ""
        remedy += f" Rejected: {escape(rows.rejected(variant))}." if variant.rejected else ""
        lines += [
            f"- **{escape(variant.name)}** failed at {variant.stage}: {escape(variant.reason)}.{remedy} "
            f"{code(variant.reproduce)}"
        ]
    lines += [
        f"- {escape(variant.name)}: {escape(note)}" for variant in manifest.variants for note in rows.notes(variant)
    ]
    lines += [f"- warning: {escape(hint)}" for hint in rows.hints(manifest)]
    lines += [
        "",
        f"**{escape(' '.join(summary.sentences(manifest)))}**",
        "",
        *map(escape, summary.alternatives(manifest)),
        "",
        *_front(manifest),
        f"Made by {code(manifest.command)}.",
        "",
    ]
    return "\n".join(lines)


def _front(manifest: Manifest) -> list[str]:
    front = summary.unbeaten(manifest)
    return [summary.UNBEATEN, "", *table(front[0], front[1:])] if front else []


def page(title: str, headings: tuple[str, ...], cells: list[tuple[str, ...]], remarks: list[str], verdict: str) -> str:
    """A table between its title and what is to be said of it."""
    lines = [f"### {escape(title)}", "", *table(headings, cells), *(f"- {escape(one)}" for one in remarks)]
    return "\n".join([*lines, "", f"**{escape(verdict)}**", ""])


def table(headings: tuple[str, ...], cells: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table, an empty one at the end."""
    return [_line(headings), _line(("---",) * len(headings)), *map(_line, cells), ""]


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"


def escape(text: str) -> str:
    """Text as a line of Markdown or the cell of a table takes it: no HTML, no link, nothing that a terminal obeys."""
    plain = " ".join(source_lines.printable(text).splitlines())
    if "`" in re.sub(r"(?<!`)`[^`]+`(?!`)", "", plain):  # one without a partner would pair with that of code beside it
        plain = plain.replace("`", "\\`")
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def code(text: str) -> str:
    """Text as code inside a line, whatever backticks it holds: CommonMark 0.31, 6.1."""
    plain = " ".join(source_lines.printable(text).splitlines())
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}"
