"""Render the report as one self-contained HTML page, without scripts or network access.

The page uses the same words as the other forms.

This file is long because each chapter of the page has its own short function, in the order of the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup, escape

from exporter.bundle import layout
from exporter.core.errors import ArtifactError
from exporter.core.records import Manifest, VariantRecord
from exporter.core.timing_records import Timing, runs_for
from exporter.report import figures, rows, summary

MOST_SAMPLES = 1 << 28  # maximum size of the samples file, in bytes
BREAK_EVEN = (
    "Number of calls after which an artifact pays off: building, loading and calling it then cost less than calling {}."
)
WORDS = (
    "session",
    "output",
    "parity",
    "worst at",
    "value",
    "model",
    "device",
    "ship",
    "unbeaten",
)  # headings of columns of text
Cells = tuple[str, ...]
Samples = dict[str, list[float]]  # milliseconds by variant and session
Timed = tuple[VariantRecord, str, Timing]


@dataclass(frozen=True)
class Table:
    """A table, with an optional figure of the same numbers above it, drawn at several widths."""

    caption: str
    headings: Cells
    lines: Sequence[Cells]
    note: str = ""
    drawings: tuple[Markup, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """The content under a heading. `folded` tables and `lists` are collapsed, each under its name."""

    title: str
    tables: tuple[Table, ...] = ()
    text: str = ""
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()
    folded: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Report:
    """One bundle's part of the page. `name` is the prefix of its ids; `problem` says why there are no samples."""

    name: str
    manifest: Manifest
    place: Path
    samples: Samples
    problem: str

    @property
    def failed(self) -> bool:
        """Whether a variant or the run itself failed."""
        return bool(rows.failures(self.manifest)) or self.manifest.status != "complete"

    @property
    def sections(self) -> list[Chapter]:
        """The chapters that have content."""
        return [section for make in SECTIONS if (section := make(self)) is not None]


def render(found: Sequence[tuple[Manifest, Path]]) -> str:
    """Render the page of one bundle, or of several with a comparison first."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["coded"] = _coded
    reports = [
        Report(f"b{number}", manifest, place, *read_samples(manifest, place))
        for number, (manifest, place) in enumerate(found, 1)
    ]
    page = environment.get_template("page.html")
    return page.render(reports=reports, comparison=compare(found), rows=rows, summary=summary, words=WORDS)


def _coded(text: str) -> Markup:
    """Escape a text and show what is between two backticks as code."""
    before, *pairs = text.split("`")
    if len(pairs) % 2:
        return escape(text)
    both = zip(pairs[::2], pairs[1::2], strict=True)
    return escape(before) + Markup().join(Markup("<code>{}</code>{}").format(code, after) for code, after in both)


def read_samples(manifest: Manifest, place: Path) -> tuple[Samples, str]:
    """Return the example's samples if their file matches its record, else no samples and the reason."""
    if manifest.samples is None:
        return {}, "The bundle has no samples"
    try:
        if manifest.samples.bytes > MOST_SAMPLES:
            return {}, f"The samples are not shown: {manifest.samples.path} is larger than {rows.size_of(MOST_SAMPLES)}"
        layout.verify(place, manifest.samples)
        found = json.loads((place / manifest.samples.path).read_bytes())
        flat = {name: np.concatenate([np.asarray(w, np.float64) for w in windows]) for name, windows in found.items()}
    except ArtifactError as error:
        return {}, f"The samples are not shown: {error}"
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        return {}, f"The samples are not shown: {manifest.samples.path}: {error}"
    return {name: values[np.isfinite(values)].tolist() for name, values in flat.items()}, ""


def compare(found: Sequence[tuple[Manifest, Path]]) -> Table:
    """Return a table of what to ship from each bundle."""
    headings = ("bundle", "model", "device", "ship", "latency", "speed-up", "size", "parity", "passed")
    return Table("What to ship from each bundle", headings, [_compared(manifest, place) for manifest, place in found])


def _compared(manifest: Manifest, place: Path) -> Cells:
    asked = [v for v in manifest.variants if v.name != manifest.baseline]
    passed = f"{sum(v.status == 'passed' for v in asked)} of {len(asked)}"
    ship: Cells = ("-",) * 5
    if best := summary.recommended(manifest):
        variant, timing = best.variant, best.timing
        ship = (
            variant.artifact.path if variant.artifact else "-",
            f"{_median(timing)} in {summary.language(best.session)}{f', {best.point}' if best.point else ''}",
            "-" if timing.speedup is None else f"{timing.speedup:.2f}x {manifest.baseline}",
            rows.size_of(best.bytes),
            variant.parity.verdict if variant.parity else "-",
        )
    return str(place), manifest.model.name, manifest.device, *ship, passed


def _results(report: Report) -> Chapter | None:
    manifest = report.manifest
    table = Table("Every variant in every session", rows.headings(manifest), rows.rows(manifest))
    return Chapter("Results", (table,)) if table.lines else None


def _latency(report: Report) -> Chapter | None:
    timed = list(_timed(report.manifest))
    if not timed:
        return None
    strips = [_strip(report, one, _median(one[2]), one[2].median_ms, one[2].ci95_ms) for one in timed]
    headings = ("variant", "session", "median", "95% interval", "p90", "p99", "min", "max", "runs", "outliers")
    lines = [(v.name, session, *_milliseconds(t), str(t.runs), str(t.outliers)) for v, session, t in timed]
    note = "A dot is the median, the bar across it the 95% interval"
    note += f", the hill the density of the samples.{_above(strips)}" if report.samples else f". {report.problem}."
    missing = [q for q in (90, 99) if any(t.runs < runs_for(q) for _, _, t in timed)]
    note += "".join(f" A p{q} is shown only if there are at least {runs_for(q)} runs." for q in missing)
    drawings = _draw(
        report, "Latency", note, lambda width: figures.strips(strips, "ms per call, lower is better", width)
    )
    table = Table("Milliseconds per call", headings, lines, note, drawings)
    return Chapter("Latency", (table, *_other("Latency and throughput at each size", rows.sweep(report.manifest))))


def _speedup(report: Report) -> Chapter | None:
    baseline = report.manifest.baseline
    timed = [one for one in _timed(report.manifest) if one[0].name != baseline and one[2].speedup_ci95]
    strips, lines = [], []
    for one in timed:
        ratio, bounds = one[2].speedup or 0.0, one[2].speedup_ci95 or (0.0, 0.0)
        strips.append(_strip(report, one, f"{ratio:.2f}x", ratio, bounds)._replace(samples=()))
        lines.append((one[0].name, one[1], f"{ratio:.2f}x", f"{bounds[0]:.2f}x to {bounds[1]:.2f}x"))
    if not lines:
        return None
    unit = f"times as fast as {baseline}, higher is better"
    note = (
        f"The median of {baseline} divided by the variant's, measured in rotation. The dashed line marks no speed-up."
    )
    drawings = _draw(report, "Speed-up", note, lambda width: figures.strips(strips, unit, width, mark=1.0))
    headings = ("variant", "session", rows.VS + baseline, "95% interval")
    return Chapter("Speed-up", (Table(f"Times as fast as {baseline}", headings, lines, note, drawings),))


def _front(report: Report) -> Chapter | None:
    found, goal = summary.choices(report.manifest), report.manifest.goal.name
    if len(found) < 2:
        return None
    front = summary.pareto(found)
    unit = "ms per item" if goal == "throughput" else "ms per call"
    points = [figures.Point(c.variant.name, c.bytes / 1e6, c.cost, c in front) for c in found]
    lines = [
        (c.variant.name, c.session, f"{rows.number(c.cost)} ms", rows.size_of(c.bytes), "yes" if c in front else "no")
        for c in found
    ]
    note = "No artifact is both faster and smaller than one on the line. Each artifact is shown in its fastest session."
    drawings = _draw(report, "Latency against size", note, lambda width: figures.pareto(points, unit, width))
    table = Table("Latency and size", ("variant", "session", unit, "size", "unbeaten"), lines, note, drawings)
    return Chapter("Latency against size", (table,))


def _parity(report: Report) -> Chapter | None:
    manifest = report.manifest
    headings = ("variant", "session", "parity", "max abs", "max rel", "cosine", "RMSE ratio", "cases", "worst at")
    lines = []
    for variant, session in ((v, s) for v in manifest.variants for s in v.sessions):
        if found := session.parity:
            values = zip((found.max_abs, found.max_rel, found.cosine), (".1e", ".1e", ".6f"), strict=True)
            cells = ("-" if value is None else f"{value:{form}}" for value, form in values)
            ratio = "-" if found.rmse_ratio is None else rows.number(found.rmse_ratio)
            lines.append((variant.name, session.session, found.verdict, *cells, ratio, str(found.cases), found.worst))
    if not lines:
        return None
    outputs = ", ".join(spec.name for spec in manifest.contract.outputs) if manifest.contract else ""
    note = f"Each number is the worst over all outputs ({outputs}) and all cases. "
    note += "RMSE ratio: the error against the reference divided by eager's own error."
    folded = _parts(manifest)
    cases = tuple(map(str, manifest.golden.cases)) if manifest.golden and not folded else ()
    lists = ((f"{len(cases)} cases", cases),) if cases else ()
    table = Table("Outputs against the reference", headings, lines, note)
    return Chapter("Parity", (table,), lists=lists, folded=folded)


def _parts(manifest: Manifest) -> tuple[Table, ...]:
    """Return a table of each output at each case, by session, or nothing if the manifest does not record them."""
    found: dict[Cells, dict[str, str]] = {}
    sessions = [(f"{v.name} {s.session}", s.parity) for v in manifest.variants for s in v.sessions if s.parity]
    for name, parity in sessions:
        for part in parity.parts:
            distance = "" if part.max_abs is None else f" {part.max_abs:.1e}"
            place = (f"{part.case} seed {part.seed}", part.output or "-")
            found.setdefault(place, {})[name] = f"{part.verdict}{distance}"
    names = [name for name, parity in sessions if parity.parts]
    lines = [(*place, *(cells.get(name, "-") for name in names)) for place, cells in found.items()]
    note = "The verdict and the largest absolute difference from the reference."
    return (Table("Each output at each case", ("case", "output", *names), lines, note),) if lines else ()


def _cost(report: Report) -> Chapter | None:
    manifest = report.manifest
    tables = [
        *_other("What an artifact costs before its first request", rows.lifecycle(manifest)),
        *_other("First calls of variants compiled just in time", rows.starts(manifest)),
    ]
    if not tables:
        return None
    if lines := list(_lines(manifest)):
        note = f"Total time spent after this many calls, relative to {manifest.baseline}. "
        note += "The dot marks where a variant has paid off. Each is shown in its fastest session."
        described = f"{note} {'; '.join(line.text for line in lines)}."
        drawings = _draw(
            report, "Break-even", described, lambda width: figures.break_even(lines, manifest.baseline, width)
        )
        tables[0] = replace(tables[0], note=note, drawings=drawings)
    return Chapter("Lifecycle and break-even", tuple(tables), BREAK_EVEN.format(manifest.baseline))


def _lines(manifest: Manifest) -> Iterator[figures.Line]:
    best = summary.recommended(manifest)
    for variant in (v for v in manifest.variants if v.status == "passed"):
        found = [rows.payback(manifest, variant, one) for one in variant.sessions if one.session in variant.timings]
        if fastest := min(filter(None, found), key=lambda one: one.each, default=None):
            yield figures.Line(variant.name, *fastest, best is not None and variant.name == best.variant.name)


def _fixed(report: Report) -> Chapter | None:
    manifest = report.manifest
    if manifest.contract is None:
        return None
    ranges = ", ".join(f"{name} from {bounds}" for name, bounds in manifest.contract.symbols.items())
    text = f"Dynamic sizes: {ranges}." if ranges else "No size is dynamic."
    lists = _lists(manifest, lambda v: (*v.fixed, *map(str, v.limits)))
    if ranges and not lists:
        text += " No artifact fixes one of them."
    return Chapter("Fixed silently", text=text, lists=lists)


def _messages(report: Report) -> Chapter | None:
    lists = _lists(report.manifest, lambda v: (*rows.notes(v, report.manifest.threads), *map(str, v.warnings)))
    return Chapter("Messages from the exporters", lists=lists) if lists else None


def _lists(
    manifest: Manifest, say: Callable[[VariantRecord], tuple[str, ...]]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((variant.name, lines) for variant in manifest.variants if (lines := say(variant)))


def _environment(report: Report) -> Chapter:
    manifest = report.manifest
    lines = [("device", manifest.device), ("threads", str(manifest.threads)), ("seed", str(manifest.model.seed))]
    return Chapter(
        "Environment",
        (Table("Environment of the measurements", ("name", "value"), [*lines, *manifest.environment.items()]),),
    )


SECTIONS: tuple[Callable[[Report], Chapter | None], ...] = (
    _results, _latency, _speedup, _parity, _cost, _front, _fixed, _messages, _environment,
)  # fmt: skip


def _timed(manifest: Manifest) -> Iterator[Timed]:
    return ((variant, session, timing) for variant in manifest.variants for session, timing in variant.timings.items())


def _other(caption: str, table: list[Cells]) -> Iterator[Table]:
    if table:
        yield Table(caption, table[0], table[1:])


def _strip(report: Report, one: Timed, text: str, value: float, bounds: tuple[float, float]) -> figures.Bar:
    variant, session, _ = one
    best = summary.recommended(report.manifest)
    kind = "baseline" if variant.name == report.manifest.baseline else ""
    if best and (best.variant.name, best.session) == (variant.name, session):
        kind = "best"
    samples = report.samples.get(f"{variant.name} {session}", [])
    label = f"{variant.name} in {summary.language(session)}{' (failed)' if variant.status == 'failed' else ''}"
    return figures.Bar(label, text, value, *bounds, kind, samples)


def _draw(report: Report, title: str, note: str, draw: Callable[[int], str]) -> tuple[Markup, ...]:
    name = f"{report.name}-{'-'.join(title.lower().split())}"
    return tuple(
        Markup(figures.inline(draw(width), f"{name}-{width}", title, f"{note} The table below has the same numbers."))
        for width in (figures.WIDE, figures.NARROW)
    )


def _median(timing: Timing) -> str:
    low, high = timing.ci95_ms
    return f"{rows.within(timing.median_ms, (high - low) / 2)} ms{'' if timing.stable else ' ~'}"


def _milliseconds(timing: Timing) -> Cells:
    low, high = map(rows.number, timing.ci95_ms)
    percentiles = (rows.percentile(timing, 90), rows.percentile(timing, 99))
    return (
        rows.number(timing.median_ms),
        f"{low} to {high}",
        *percentiles,
        rows.number(timing.min_ms),
        rows.number(timing.max_ms),
    )


def _above(strips: Sequence[figures.Bar]) -> str:
    """Return a sentence with the number of samples above the end of the axis, or "" if there are none."""
    end = figures.edge(strips)
    count = sum(sample > end for strip in strips for sample in strip.samples)
    return (
        f" {count} of {sum(len(s.samples) for s in strips)} samples are above {rows.number(end)} ms." if count else ""
    )
