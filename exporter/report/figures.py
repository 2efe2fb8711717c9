"""Draw figures as inline SVG. Text stays text in the page's font, and colours are variables of the page's style."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator
from matplotlib.transforms import blended_transform_factory

INK, MUTED, RULE, ACCENT, SOFT, PAPER = (f"#0{n}0{n}0{n}" for n in range(1, 7))  # placeholders for the page's variables
VARIABLES = {INK: "ink", MUTED: "muted", RULE: "rule", ACCENT: "accent", SOFT: "soft", PAPER: "paper"}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "exporter",
    "font.size": 13,
    "font.sans-serif": ["DejaVu Sans"],
    "text.parse_math": False,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
WIDE, NARROW = 860, 310  # pixels: for desktops, with names beside the strips, and for phones, with names above them
FOOT, EDGE, GAP = 44, 8, 24  # pixels: below the axis, at the other edges, and before names at the right
TICK = 24  # pixels: half of the widest number below an axis, for which there must be room at its ends
LINE, LETTER, LETTERS = 18, 7.5, 44  # height of a line and width of a letter in pixels; maximum letters of a name
MOST = 1000  # maximum number of quantiles that represent a row's samples
TOP, MOST_CALLS = 1.5, 1e9  # ends of the break-even axes: multiples of the baseline's time, and calls
FAR_OUT = 3.0  # interquartile ranges above the upper quartile, after Tukey, "Exploratory Data Analysis" (1977)


class Bar(NamedTuple):
    """A value with its 95% interval and, if available, its samples."""

    label: str
    text: str
    value: float
    low: float
    high: float
    kind: str = ""  # best, or baseline
    samples: Sequence[float] = ()


class Point(NamedTuple):
    """An artifact's size and speed. `front` says whether it is on the Pareto front."""

    label: str
    size_mb: float
    cost_ms: float
    front: bool


class Line(NamedTuple):
    """The time that a variant takes `before` its first call and for `each` call, in calls of the baseline.

    `calls` is the number of calls after which it pays off, or None if it never does.
    """

    label: str
    before: float
    each: float
    calls: int | None
    best: bool

    @property
    def text(self) -> str:
        """The name with the number of calls."""
        return f"{self.label}: {'never' if self.calls is None else f'{self.calls:,} calls'}"


def edge(rows: Sequence[Bar]) -> float:
    """Return the end of the axis: the highest interval, or sample that is not far out (`FAR_OUT`)."""
    return max(max(row.high, *_near(row.samples), 0.0) for row in rows)


def _near(samples: Sequence[float]) -> Sequence[float]:
    if not len(samples):
        return ()
    low, high = np.percentile(samples, [25, 75])
    limit = high + FAR_OUT * (high - low)
    return [sample for sample in samples if sample <= limit]


class Layout(NamedTuple):
    """Pixels: the margins of the axes, and for each row its height, its hill's, and where its baseline and name are."""

    left: int
    right: int
    row: int
    hill: int
    base: int
    name: int
    below: int = 0  # distance of the text below the name; 0 puts it at the right


def _layout(rows: Sequence[Bar], width: int) -> Layout:
    if width >= WIDE:
        base = 7 if any(row.samples for row in rows) else 15
        return Layout(_room(row.label for row in rows), _room(row.text for row in rows), 38, 24, base, 15)
    if any(len(row.label) + len(row.text) > 36 for row in rows):
        return Layout(TICK, TICK, 74, 18, 11, 56, 18)
    return Layout(TICK, TICK, 56, 18, 11, 39)


def _room(words: Iterable[str]) -> int:
    return int(12 + LETTER * max(map(len, words)))


def _cut(name: str, letters: int = LETTERS) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


@matplotlib.rc_context(STYLE)
def strips(rows: Sequence[Bar], unit: str, width: int, mark: float | None = None) -> str:
    """Draw a strip for each row with the density of its samples, its interval and its value, and a line at `mark`."""
    rows = [row._replace(label=_cut(row.label), text=_cut(row.text)) for row in rows]
    layout, end = _layout(rows, width), edge(rows)
    inside = layout.row * len(rows)
    axes = _axes(width, inside + FOOT, layout.left, layout.right, 0)
    axes.set_xlim(0, 1.02 * max(end, mark or 0.0) or 1.0)
    axes.set_ylim(0, inside)
    axes.set_yticks([])
    if mark is not None:
        axes.axvline(mark, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    for index, row in enumerate(reversed(rows)):
        _strip(axes, row, index * layout.row + layout.base, layout.hill, end)
        _name(axes, row, index * layout.row + layout.name, layout.below)
    return _finish(axes, unit, width)


def _strip(axes: Any, row: Bar, base: float, height: float, end: float) -> None:
    colour, fill = (MUTED, RULE) if row.kind == "baseline" else (ACCENT, SOFT)
    shown = [sample for sample in row.samples if sample <= end]
    if shown:
        quantiles = np.quantile(shown, np.linspace(0, 1, min(len(shown), MOST)))
        drawn = axes.violinplot(
            [quantiles], [base], widths=2 * height, points=120, orientation="horizontal", side="high", showextrema=False
        )
        drawn["bodies"][0].set(facecolor=fill, edgecolor=colour, linewidth=1, alpha=1)
    axes.plot((row.low, row.high), (base, base), color=colour, linewidth=5, solid_capstyle="butt")
    axes.plot(row.value, base, "o", color=colour, markersize=9, markeredgecolor=PAPER, markeredgewidth=1.5)


def _name(axes: Any, row: Bar, y: float, below: float) -> None:
    place = blended_transform_factory(axes.figure.transFigure, axes.transData)
    style = {"color": INK, "weight": "bold" if row.kind == "best" else "normal", "transform": place, "va": "center"}
    axes.text(0, y, row.label, **style)
    axes.text(*((0, y - below) if below else (1, y)), row.text, ha="left" if below else "right", **style)


@matplotlib.rc_context(STYLE)
def pareto(points: Sequence[Point], unit: str, width: int) -> str:
    """Draw milliseconds against size, with a line through the Pareto front and the names, by speed, at the right."""
    points = [point._replace(label=_cut(point.label, width // 20)) for point in points]
    inside = max(220, LINE * len(points))
    axes = _axes(width, inside + FOOT + EDGE, 56, GAP + _room(point.label for point in points), EDGE)
    axes.set_xlim(0, 1.08 * max(point.size_mb for point in points) or 1.0)
    axes.set_ylim(0, 1.08 * max(point.cost_ms for point in points) or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylabel(unit, color=MUTED)
    front = sorted((point.size_mb, point.cost_ms) for point in points if point.front)
    axes.plot(*zip(*front, strict=True), color=ACCENT, linewidth=1.5, drawstyle="steps-post")
    for point in points:
        style = {"color": ACCENT if point.front else MUTED, "zorder": 3 + point.front}
        axes.plot(point.size_mb, point.cost_ms, "o", markersize=9, markeredgecolor=PAPER, **style)
    _names(axes, [(point.cost_ms, point.size_mb, point.front, point.label) for point in points], LINE / inside)
    return _finish(axes, "MB", width)


@matplotlib.rc_context(STYLE)
def break_even(lines: Sequence[Line], baseline: str, width: int) -> str:
    """Draw the total time after each number of calls, relative to the baseline, with a dot where a line pays off."""
    wide = width >= WIDE
    lines = [line._replace(label=_cut(line.label, 30 if wide else width // 20)) for line in lines]
    labels = [line.text if wide else line.label for line in lines]
    inside = int(max(220, TOP * LINE * len(lines)))
    axes = _axes(width, inside + FOOT + EDGE, 56, GAP + _room(labels), EDGE)
    first = min(max(1.0, min(line.before for line in lines) / TOP), MOST_CALLS / 10)
    last = max(10 * first, *(max(20 * line.before, 2 * (line.calls or 0)) for line in lines))
    calls = np.geomspace(first, min(last, MOST_CALLS), 200)
    axes.set(xscale="log", xlim=calls[[0, -1]], ylim=(0, TOP), yticks=np.linspace(0, TOP, 4))
    axes.axhline(1, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    for line in lines:
        style = {"color": MUTED if line.calls is None else ACCENT, "zorder": 3 + line.best}
        axes.plot(calls, line.before / calls + line.each, linewidth=2.5 if line.best else 1.25, **style)
        if line.calls is not None:
            axes.plot(line.calls, 1, "o", markersize=9, markeredgecolor=PAPER, **style)
    ends = [
        (line.before / calls[-1] + line.each, calls[-1], line.best, label)
        for line, label in zip(lines, labels, strict=True)
    ]
    _names(axes, ends, LINE / inside)
    axes.set_ylabel(f"time so far, {baseline} = 1", color=MUTED)
    return _finish(axes, "calls", width)


def _names(axes: Any, ends: Sequence[tuple[float, float, bool, str]], step: float) -> None:
    """Write names at the right, a `step` apart, and join each to its point. `ends` are (y, x, bold, name)."""
    side, place = axes.get_position().x1 + GAP / axes.figure.bbox.width, 0.0
    for index, (y, x, bold, name) in enumerate(sorted(ends)):
        place = min(max(place + step, y / axes.get_ylim()[1]), 1 - step * (len(ends) - 1 - index))
        line = {"arrowstyle": "-", "color": RULE, "shrinkB": 6, "relpos": (0, 0.5)}
        style = {"color": INK, "weight": "bold" if bold else "normal", "va": "center", "arrowprops": line}
        axes.annotate(name, (x, y), (side, place), textcoords=("figure fraction", "axes fraction"), **style)


def _axes(width: int, height: int, left: int, right: int, top: int) -> Any:
    """Return axes in a figure of this size, with these margins, in pixels."""
    figure = Figure(figsize=(width / 72, height / 72))
    return figure.add_axes((left / width, FOOT / height, 1 - (left + right) / width, 1 - (FOOT + top) / height))


def _finish(axes: Any, unit: str, width: int) -> str:
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(color=RULE, linewidth=1)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=MUTED, pad=6)
    ticks = 7 if width >= WIDE else 4
    if axes.get_xscale() == "log":
        axes.minorticks_off()
        axes.xaxis.set_major_locator(LogLocator(numticks=ticks))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(ticks))
    axes.set_xlabel(unit, color=MUTED)
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing glyphs, which the browser's fonts have
        axes.figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    text = file.getvalue()
    for colour, name in VARIABLES.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    return text[text.index("<svg") :]


def inline(svg: str, name: str, title: str, description: str) -> str:
    """Prepare the SVG for a page with several: prefix its ids with `name`, and add the title and description."""
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    words = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    head = f'<svg role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc"'
    return re.sub(r"<svg([^>]*)>", lambda match: f"{head}{match[1]}>{words}", svg, count=1)
