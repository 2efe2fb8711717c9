"""Render the report of `exporter compare`: a line for each variant and session, contract changes, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.core.json_codec import to_json
from exporter.report import console, markdown
from exporter.report.rows import number, size_of
from exporter.runs.compare_bundles import Comparison, Latency, Pair

HEADINGS = ("variant", "session", "contract", "parity", "size", "latency", "new over old")


def render(comparison: Comparison, form: str) -> str:
    """Render the comparison as a table, json or md, with a newline at the end."""
    if form == "json":
        return to_json(comparison) + "\n"
    lines = [line for pair in comparison.pairs for line in _lines(pair)]
    show = markdown.page if form == "md" else console.page
    return show(
        f"{comparison.new} against {comparison.old}", HEADINGS, lines, [*_remarks(comparison)], _verdict(comparison)
    )


def _lines(pair: Pair) -> Iterator[tuple[str, ...]]:
    common = (_contract(pair), _change(*pair.verdicts), _change(*map(size_of, pair.bytes)))
    for session, latency in pair.latency.items() or {"-": None}.items():
        yield pair.name, session, *common, *_latency(latency)


def _contract(pair: Pair) -> str:
    if not pair.changes:
        return "same"
    return "breaking" if any(change.breaking for change in pair.changes) else "compatible"


def _change(old: str, new: str) -> str:
    return new if old == new else f"{old} → {new}"


def _latency(latency: Latency | None) -> tuple[str, str]:
    if latency is None:
        return "-", "-"
    medians = f"{number(latency.old_ms)} → {number(latency.new_ms)} ms"
    if latency.ratio_ci95 is None:
        return medians, f"{latency.ratio:.2f}x"
    ratio, low, high = (f"{one:.2f}" if one >= 0.01 else f"{one:.1g}" for one in (latency.ratio, *latency.ratio_ci95))
    return medians, f"{ratio}x ({low}…{high})"


def _remarks(comparison: Comparison) -> Iterator[str]:
    for pair in comparison.pairs:
        for change in pair.changes:
            yield f"{pair.name}: {change.what} ({'breaking' if change.breaking else 'compatible'})"
        if pair.note:
            yield f"{pair.name}: {pair.note}"
        if pair.busy:
            yield f"{pair.name}: {pair.busy}"
    if any(latency.ratio_ci95 is None for pair in comparison.pairs for latency in pair.latency.values()):
        yield "each latency comes from its own run; --measure times both bundles side by side"
    for name in comparison.gone:
        yield f"{name} is missing"
    for name in comparison.added:
        yield f"{name} is new"


def _verdict(comparison: Comparison) -> str:
    if not comparison.broken:
        return "The new bundle can replace the old one."
    return f"The new bundle cannot replace the old one: {'; '.join(comparison.broken)}."
