"""Measure how the cost of each route grows with parameters, layers, batch and sequence, and fit a line to each cost.

The model is a BERT-like encoder with fixed sizes. Each route of each point is one run of exporter in a process of its
own, so nothing else is exported beside it. The memory of an export is the peak of its run: loading, capture, export,
the golden and the checks. On axes of logarithms, the slope of a cost is its exponent: 1 is proportional to the size.
A slope is marked as faster than linear if its 95% interval lies above LIMIT. A cost has a fixed part too, which
flattens its line; `last` is therefore the slope between the two largest sizes alone. Writes `raw.json`, `growth.md`
and, with matplotlib, `growth.svg` into --out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import large

from exporter import targets
from exporter.core import environment
from exporter.core.filesystem import write_atomic
from exporter.core.json_codec import to_json
from exporter.model import recipes
from exporter.runs.request import Request

HERE = Path(__file__).parent
ROUTES = ("trace", "compile", "onnx", "export")
COSTS = {
    "export_s": "export, s",
    "export_gb": "memory of an export, GB",
    "load_s": "load, s",
    "session_gb": "memory of a session, GB",
    "latency_ms": "latency, ms",
}
PARAMETERS = "0.003,0.02,0.1,0.4,0.8,1.5"
MILLIONS = "million parameters"
LAYERS = 4  # while the width grows
BASE = {"width": 256, "layers": 2, "batch": 1, "sequence": 16}
AXES = {"layers": (2, 4, 8, 16), "batch": (1, 4, 16, 64), "sequence": (16, 64, 256, 512)}
ALL_AXES = ",".join(("parameters", *AXES))
QUICK_PARAMETERS = "0.001,0.004,0.01"
QUICK_AXES = {"layers": (2, 4, 8), "batch": (1, 4, 16), "sequence": (16, 64, 256)}
LIMIT = 1.1
# Student's t for a 95% interval, by degrees of freedom
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}


class Slope(NamedTuple):
    """The exponent of a cost, its 95% interval, and the exponent between the two largest sizes."""

    value: float
    low: float
    high: float
    last: float

    def __str__(self) -> str:
        mark = ", faster than linear" if self.low > LIMIT else ""
        return f"{self.value:.2f} ({self.low:.2f}…{self.high:.2f}), last {self.last:.2f}{mark}"


def main() -> None:
    """Measure all points that raw.json lacks, then write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", help=f"in billions, separated by commas; {PARAMETERS} if not given")
    parser.add_argument("--axes", help=f"which to measure, separated by commas; {ALL_AXES} if not given")
    parser.add_argument("--quick", action="store_true", help="smaller models, in a few minutes")
    parser.add_argument("--resume", action="store_true", help="measure only what raw.json lacks")
    parser.add_argument("--render", action="store_true", help="measure nothing; make the table and the figure again")
    parser.add_argument("--time-budget", type=float, default=1.0, help="seconds of timed calls for each row")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "growth")
    parser.add_argument("--point", nargs=4, metavar=("NAME", "ROUTE", "BUNDLE", "MANIFEST"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.point:
        name, route, bundle, manifest = arguments.point
        _export(name, route, Path(bundle), Path(manifest), arguments.time_budget)
        return
    points = list(collect(arguments).values())
    text = render(points)
    (arguments.out / "growth.md").write_text(text)
    print(text)
    with contextlib.suppress(ImportError):
        import _growth_figure

        _growth_figure.draw(series(points), COSTS, caption(points), arguments.out / "growth.svg")


def collect(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return all points by name, with the axes that each is on; write raw.json after each measurement."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    raw = arguments.out / "raw.json"
    kept = (arguments.resume or arguments.render) and raw.is_file()
    found: dict[str, dict[str, Any]] = json.loads(raw.read_text()) if kept else {}
    tried: set[str] = set()  # in this call: several axes share a point, whose failed routes have no costs
    for axis, points in {} if arguments.render else sweeps(arguments).items():
        for name, sizes in points.items():
            empty = {"name": name, "axes": [], **sizes, MILLIONS: 0.0, "costs": {}, "seconds": 0.0, "failed": []}
            point = found.setdefault(name, empty)
            point["axes"] = sorted({axis, *point["axes"]})
            for route in (one for one in ROUTES if one not in point["costs"] and name not in tried):
                add(point, route, arguments)
                write_atomic(raw, json.dumps(found, indent=1) + "\n")
            tried.add(name)
    return found


def sweeps(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, int]]]:
    """Return the points of each axis from small to large: their sizes by the name of the recipe."""
    axes, billions = (QUICK_AXES, QUICK_PARAMETERS) if arguments.quick else (AXES, PARAMETERS)
    wanted = [float(one) * 1e9 for one in (arguments.parameters or billions).split(",")]
    widths = [max(64, 64 * round(math.sqrt(one / (12 * LAYERS)) / 64)) for one in wanted]
    found = {MILLIONS: [BASE | {"width": width, "layers": LAYERS} for width in widths]}
    found |= {axis: [BASE | {axis: size} for size in sizes] for axis, sizes in axes.items()}
    chosen = [MILLIONS if axis == "parameters" else axis for axis in (arguments.axes or ALL_AXES).split(",")]
    if unknown := [axis for axis in chosen if axis not in found]:
        raise SystemExit(f"no axis is called {', '.join(unknown)}; the axes are {ALL_AXES}")
    named = "w{width}_l{layers}_b{batch}_s{sequence}"
    return {axis: {named.format(**sizes): sizes for sizes in found[axis]} for axis in chosen}


def add(point: dict[str, Any], route: str, arguments: argparse.Namespace) -> None:
    """Export a point to one route; add the costs, its parameters and the machine to it."""
    manifest, name = arguments.out / "manifest.json", point["name"]
    words = ["--point", name, route, "BUNDLE", str(manifest), "--time-budget", str(arguments.time_budget)]
    run = large.measure([__file__, *words])
    print(f"{name} {route}: {run['seconds']:.0f} s, {run['peak_gb']:.2f} GB {run['failed']}", flush=True)
    if manifest.is_file():
        said = json.loads(manifest.read_text())
        point[MILLIONS] = said["model"]["parameters"] / 1e6
        for row in said["variants"]:
            if row["name"] == route:
                point["costs"][route] = costs_of(row, run["peak_gb"])
    manifest.unlink(missing_ok=True)
    point["seconds"] += run["seconds"]
    failed = [one for one in point["failed"] if not one.startswith(f"{route}: ")]
    point["failed"] = failed + ([f"{route}: {run['failed']}"] if run["failed"] else [])
    point |= {fact: run[fact] for fact in ("machine", "date", "load")}


def costs_of(row: Mapping[str, Any], peak_gb: float) -> dict[str, float]:
    """Return the costs of one row that were measured; latency and load are those of its Python session."""
    life, timing = row["lifecycle"], row["timings"].get("python", {})
    found = {
        "export_s": life["export_s"],
        "export_gb": life["export_s"] and peak_gb,
        "load_s": life["load_s"],
        "session_gb": life["peak_rss_mb"] and life["peak_rss_mb"] / 1000,
        "latency_ms": timing.get("median_ms"),
    }
    return {name: value for name, value in found.items() if value}


def _export(name: str, route: str, bundle: Path, manifest: Path, budget: float) -> None:
    """Export one encoder to one route, and write the manifest."""
    request = Request(
        name,
        recipes.find(f"{HERE / '_encoder.py'}:{name}"),
        tuple(targets.parse(route)),
        bundle,
        threads=environment.usable_cpus(),
        dynamic="none",
        time_budget=budget,
        timeout=3600.0,
    )
    manifest.write_text(to_json(large.run(request)))


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Slope:
    """Return the slope of log(cost) against log(size), by least squares. Needs three points and two different sizes."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    count = len(x)
    middle, height = sum(x) / count, sum(y) / count
    spread = sum((one - middle) ** 2 for one in x)
    slope = sum((one - middle) * (other - height) for one, other in zip(x, y, strict=True)) / spread
    left = sum((other - height - slope * (one - middle)) ** 2 for one, other in zip(x, y, strict=True))
    margin = STUDENT[count - 2] * math.sqrt(left / (count - 2) / spread)
    return Slope(slope, slope - margin, slope + margin, (y[-1] - y[-2]) / (x[-1] - x[-2]))


Series = dict[tuple[str, str, str], list[tuple[float, float]]]  # (axis, cost, route): (size, cost), by size


def series(found: Sequence[Mapping[str, Any]]) -> Series:
    """Return the points of every line."""
    lines: Series = {}
    for point in found:
        for axis in point["axes"]:
            for route, costs in point["costs"].items():
                for cost, value in costs.items():
                    lines.setdefault((axis, cost, route), []).append((point[axis], value))
    return {key: sorted(line) for key, line in lines.items()}


def caption(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the machine, its load, the versions and the dates."""
    machine, loads = found[-1]["machine"], [load for point in found for load in point["load"]]
    dates = " and ".join(sorted({point["date"] for point in found}))
    cpu = f"{machine.get('cpus', '')} cores of {machine.get('cpu', '')}"
    return (
        f"{cpu}, torch {machine.get('torch', '')}, load {min(loads, default=0):g} to {max(loads, default=0):g}, {dates}"
    )


def render(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the slopes and the points in Markdown."""
    lines = [f"# How cost grows\n\n{caption(found)}. Made by `python benchmarks/growth.py`.\n"]
    fitted = series(found)
    for axis in dict.fromkeys(axis for axis, _, _ in fitted):
        lines += [f"## {axis}\n", *_table(["cost", *ROUTES], _slopes(fitted, axis)), ""]
        sizes = sorted({size for (of, _, _), line in fitted.items() if of == axis for size, _ in line})
        lines += [*_table(["cost", "route", *(f"{size:.4g}" for size in sizes)], _values(fitted, axis, sizes)), ""]
    failed = [f"- {point['name']}: {', '.join(point['failed'])}" for point in found if point["failed"]]
    return "\n".join([*lines, *failed]).rstrip() + "\n"


def _slopes(fitted: Series, axis: str) -> Iterator[list[str]]:
    for cost, label in COSTS.items():
        found = [fitted.get((axis, cost, route), []) for route in ROUTES]
        yield [label, *(str(fit(*zip(*line, strict=True))) if len(line) > 2 else "" for line in found)]


def _values(fitted: Series, axis: str, sizes: Sequence[float]) -> Iterator[list[str]]:
    for cost, label in COSTS.items():
        for route in ROUTES:
            line = dict(fitted.get((axis, cost, route), []))
            yield [label, route, *(f"{line[size]:.3g}" if size in line else "" for size in sizes)]


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
