"""Draw figures from raw.json. With the same matplotlib, the same file results in the same bytes of SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _render
import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

matplotlib.rcParams |= {
    "svg.hashsalt": "exporter",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}
BASELINE, OTHER, MARK = "#9aa3ad", "#2f6db3", "#d1662b"
LINES = ("#9aa3ad", "#2f6db3", "#d1662b", "#3f8f4f")
WIDTH, ROW, PANEL, FOOT = 8.5, 0.27, 0.95, 0.55  # inches


class Bar(NamedTuple):
    """One row: its value, its 95% interval, and whether it is the baseline."""

    label: str
    value: float
    low: float
    high: float
    baseline: bool


class Panel(NamedTuple):
    """Bars that share an axis."""

    title: str
    unit: str
    bars: list[Bar]
    mark: float | None = None


def draw(name: str, table: dict[str, Any], path: Path) -> None:
    """Draw the figure of one table; write no file if nothing was measured."""
    title = _render.TITLES[name]
    figure = _lines(table) if name == "d" else _bars([panel for panel in PANELS[name](table) if panel.bars])
    if figure is None:
        return
    text = f"{_render.caption(table)}. Medians with their 95% intervals."
    text += " Some rows were not measured; tables.md gives the reasons." if any(_render.errors(table)) else ""
    save(figure, title, text, path)


def save(figure: Figure, title: str, text: str, path: Path) -> None:
    """Write the figure with its title above, and the text below."""
    height = figure.get_figheight()
    figure.suptitle(title, x=0.01, y=1 - 0.08 / height, ha="left", va="top", fontsize=12, fontweight="bold")
    caption = "\n".join(textwrap.wrap(text, 130))
    figure.text(0.01, 0.08 / height, caption, ha="left", va="bottom", fontsize=7, color="#555555")
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


def _bars(panels: list[Panel]) -> Figure | None:
    """Draw panels below each other, each as high as its rows need; None if there are no panels."""
    if not panels:
        return None
    heights = [PANEL + ROW * len(panel.bars) for panel in panels]
    total = sum(heights) + FOOT + 0.25
    figure = Figure(figsize=(WIDTH, total))
    top = total - 0.25
    for panel, height in zip(panels, heights, strict=True):
        inside = ROW * len(panel.bars)
        axes = figure.add_axes((0.36, (top - 0.45 - inside) / total, 0.56, inside / total))
        _fill(axes, panel)
        top -= height
    return figure


def _fill(axes: Any, panel: Panel) -> None:
    places = range(len(panel.bars))
    values = [bar.value for bar in panel.bars]
    spread = [[bar.value - bar.low for bar in panel.bars], [bar.high - bar.value for bar in panel.bars]]
    colours = [BASELINE if bar.baseline else OTHER for bar in panel.bars]
    axes.barh(places, values, height=0.66, color=colours)
    if any(map(any, spread)):
        axes.errorbar(values, places, xerr=spread, fmt="none", ecolor="#222222", elinewidth=0.9, capsize=2)
    axes.set_yticks(places, [bar.label for bar in panel.bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(*(bar.high for bar in panel.bars), panel.mark or 0.0))
    if panel.mark is not None:
        axes.axvline(panel.mark, color=MARK, linewidth=1.0, linestyle="--", zorder=0.5)
    for place, bar in zip(places, panel.bars, strict=True):
        axes.annotate(
            _render.number(bar.value), (bar.high, place), xytext=(4, 0), textcoords="offset points", va="center", size=8
        )
    axes.set_title(panel.title, loc="left", fontsize=9.5, fontweight="bold")
    axes.set_xlabel(panel.unit, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.7)


def _latencies(table: dict[str, Any]) -> Iterator[Panel]:
    """Yield a panel of latencies for each group."""
    for group, rotations in _render.groups(table).items():
        bars = [
            Bar(name, timing.median_ms, *timing.ci95_ms, name == rotation["baseline"])
            for rotation in rotations
            for name, timing in _render.timings(rotation).items()
        ]
        yield Panel(group, "ms, lower is better", bars)


def _speedups(table: dict[str, Any]) -> Iterator[Panel]:
    """Yield a panel for each group: the speed-up of each row over the baseline."""
    for group, rotations in _render.groups(table).items():
        bars = [
            Bar(name, timing.speedup, *timing.speedup_ci95, False)
            for rotation in rotations
            for name, timing in _render.timings(rotation).items()
            if name != rotation["baseline"] and timing.speedup is not None and timing.speedup_ci95 is not None
        ]
        yield Panel(group, "speed-up over the function without torch.compile, higher is better", bars, mark=1.0)


def _steps(table: dict[str, Any]) -> Iterator[Panel]:
    """Yield panels of the time and the peak memory for each precision."""
    yield from _latencies(table)
    for rotation in table["rotations"]:
        peaks = {name: row.get("facts", {}).get("peak_mb") for name, row in rotation["rows"].items()}
        bars = [Bar(n, mb, mb, mb, n == rotation["baseline"]) for n, mb in peaks.items() if mb is not None]
        yield Panel(f"{rotation['group']}: peak memory", "MB, lower is better", bars)


PANELS = {"a": _latencies, "b": _speedups, "c": _steps}


def _lines(table: dict[str, Any]) -> Figure:
    """Draw latency above and build time below, each against every size that varies."""
    rotations = table["rotations"]
    sizes = list(rotations[0]["point"])
    names = list(dict.fromkeys(name for rotation in rotations for name in rotation["rows"]))
    figure = Figure(figsize=(WIDTH, 6.2))
    grid = figure.subplots(2, len(sizes), squeeze=False, sharey="row")
    figure.subplots_adjust(left=0.08, right=0.98, top=0.83, bottom=0.16, hspace=0.35, wspace=0.08)
    for column, size in enumerate(sizes):
        sweep = _sweep(rotations, size)
        for name, colour in zip(names, LINES, strict=False):
            draw_line(grid[0, column], _latency_points(sweep, size, name), name, colour)
            draw_line(grid[1, column], _build_points(sweep, size, name), name, colour)
        for axes in grid[:, column]:
            log_axes(axes, sorted({rotation["point"][size] for rotation in sweep}))
            fixed = ", ".join(f"{name} {value}" for name, value in sweep[0]["point"].items() if name != size)
            axes.set_xlabel(f"{size} ({fixed})", fontsize=8)
    grid[0, 0].set_ylabel("latency, ms")
    grid[1, 0].set_ylabel("build, s")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.06, 0.94), ncols=len(names), frameon=False)
    return figure


def _sweep(rotations: list[dict[str, Any]], size: str) -> list[dict[str, Any]]:
    """Return the points at which all sizes but `size` have their most common values, ordered by `size`."""
    others = [tuple(v for n, v in rotation["point"].items() if n != size) for rotation in rotations]
    usual = max(others, key=others.count)
    chosen = [rotation for rotation, other in zip(rotations, others, strict=True) if other == usual]
    return sorted(chosen, key=lambda rotation: int(rotation["point"][size]))


Point = tuple[float, float, float, float]  # size, value, and its 95% interval


def _latency_points(sweep: list[dict[str, Any]], size: str, name: str) -> Iterator[Point]:
    for rotation in sweep:
        if (timing := _render.timings(rotation).get(name)) is not None:
            yield rotation["point"][size], timing.median_ms, *timing.ci95_ms


def _build_points(sweep: list[dict[str, Any]], size: str, name: str) -> Iterator[Point]:
    for rotation in sweep:
        seconds = rotation["rows"].get(name, {}).get("facts", {}).get("build_s")
        if seconds is not None:
            yield rotation["point"][size], seconds, seconds, seconds


def log_axes(axes: Any, places: list[float]) -> None:
    """Make both axes logarithmic, with a tick at each place."""
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(places, [f"{place:.3g}" for place in places])
    axes.minorticks_off()
    axes.grid(color="#e5e5e5", linewidth=0.7)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")


def draw_line(axes: Any, points: Iterator[Point], name: str, colour: str) -> None:
    """Draw the points of one row, with their intervals."""
    found = list(points)
    if not found:
        return
    places, values, lows, highs = zip(*found, strict=True)
    spread = [
        [value - low for value, low in zip(values, lows, strict=True)],
        [high - value for value, high in zip(values, highs, strict=True)],
    ]
    axes.errorbar(places, values, yerr=spread, label=name, color=colour, marker="o", markersize=3.5, capsize=2, lw=1.4)
