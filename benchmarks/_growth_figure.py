"""Draw how each cost grows along each axis: the figure of benchmarks/growth.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from _figures import LINES, WIDTH, draw_line, log_axes, save
from matplotlib.figure import Figure

ROW = 1.75  # inches


def draw(
    lines: Mapping[tuple[str, str, str], Sequence[tuple[float, float]]], costs: Mapping[str, str], text: str, path: Path
) -> None:
    """Draw a row of panels for each cost and a column for each axis, with a line for each route."""
    sizes, routes = (list(dict.fromkeys(key[place] for key in lines)) for place in (0, 2))
    figure = Figure(figsize=(WIDTH, ROW * len(costs) + 1.2))
    grid = figure.subplots(len(costs), len(sizes), squeeze=False, sharex="col", sharey="row")
    figure.subplots_adjust(left=0.08, right=0.98, top=0.95, bottom=0.08, hspace=0.12, wspace=0.08)
    for row, (cost, label) in enumerate(costs.items()):
        grid[row, 0].set_ylabel(label, fontsize=8)
        for column, size in enumerate(sizes):
            places = sorted({x for key, line in lines.items() if key[0] == size for x, _ in line})
            log_axes(grid[row, column], places)
            for route, colour in zip(routes, LINES, strict=False):
                points = ((x, y, y, y) for x, y in lines.get((size, cost, route), ()))
                draw_line(grid[row, column], points, route, colour)
    for column, size in enumerate(sizes):
        grid[-1, column].set_xlabel(size, fontsize=8)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="upper right", ncols=len(routes), frameon=False)
    save(figure, "How cost grows", text, path)
