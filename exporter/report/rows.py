"""Turn the manifest into rows of text, which all forms of the report share."""

from __future__ import annotations

import math
from typing import NamedTuple

from exporter.core import runners, tuning_records
from exporter.core.records import EAGER, UNCHECKED, Manifest, SessionRecord, VariantRecord
from exporter.core.timing_records import Timing, runs_for
from exporter.core.tolerances import OutputTolerances

VS = "vs "  # before the baseline's name
UNSTABLE = "~ unstable: the interval stayed wider than ±3%;"  # followed by a remedy


class Payback(NamedTuple):
    """The time that a variant takes `before` its first call and for `each` call, in calls of the baseline.

    `calls` is the number of calls after which it pays off, or None if it never does.
    """

    before: float
    each: float
    calls: int | None


def headings(manifest: Manifest) -> tuple[str, ...]:
    """Return the headings of the main table."""
    against = VS + manifest.baseline
    metric = ("metric",) if manifest.metric else ()
    return "variant", "session", "median", "min…max", "runs", against, "parity", *metric, "size", "build"


def rows(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return the main table's cells: a row for each variant and session, or one for a variant without sessions."""
    return [
        _row(variant, session, manifest) for variant in manifest.variants for session in variant.sessions or (None,)
    ]


def others(manifest: Manifest) -> list[list[tuple[str, ...]]]:
    """Return the other tables that have content, each with its headings first."""
    return list(filter(None, (sweep(manifest), lifecycle(manifest), starts(manifest))))


def lifecycle(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return headings and a row for each artifact: its cost before serving and the calls after which it pays back.

    The calls are relative to the baseline, which needs no build. Returns an empty list if nothing was timed.
    """
    on_gpu = manifest.device != "cpu"
    headings = (
        "artifact",
        "session",
        "load",
        "first call",
        "memory",
        *(("GPU memory",) if on_gpu else ()),
        "pays back",
    )
    lines = [
        (variant.name, session.session, *_costs(session, on_gpu), _pays_back(manifest, variant, session))
        for variant in manifest.variants
        if variant.artifact
        for session in variant.sessions
        if session.session in variant.timings
    ]
    return [headings, *lines] if lines else []


def _costs(session: SessionRecord, on_gpu: bool) -> tuple[str, ...]:
    load = "-" if session.load_s is None else f"{number(session.load_s)} s"
    first = "-" if session.first_call_ms is None else f"{number(session.first_call_ms)} ms"
    memory = (session.peak_rss_mb, *((session.gpu_mb,) if on_gpu else ()))
    return load, first, *("-" if mb is None else size_of(round(mb * 1e6)) for mb in memory)


def _pays_back(manifest: Manifest, variant: VariantRecord, session: SessionRecord) -> str:
    found = payback(manifest, variant, session)
    return "-" if found is None else "never" if found.calls is None else f"{found.calls:,} calls"


def payback(manifest: Manifest, variant: VariantRecord, session: SessionRecord) -> Payback | None:
    """Return when building, loading and calling a variant cost less than the baseline's calls, or None if unknown.

    It is unknown if eager is not the baseline, if times are missing, or if the interval of the speed-up contains 1. The
    baseline needs no build. A variant compiled just in time is built by its first call and needs no loading.
    """
    rest = next((v.timings for v in manifest.variants if v.name == manifest.baseline), {})
    baseline, timing, build_s = rest.get("python"), variant.timings[session.session], _build_s(variant)
    if manifest.baseline != EAGER or baseline is None or not baseline.median_ms or build_s is None:
        return None
    before_ms = (build_s + (session.load_s or 0 if variant.artifact else 0)) * 1000
    speedup = timing.speedup or baseline.median_ms / timing.median_ms
    low, high = timing.speedup_ci95 or (speedup, speedup)
    if low <= 1 < high:
        return None
    calls = None if high <= 1 else math.ceil(before_ms / (timing.median_ms * (speedup - 1)))
    return Payback(before_ms / baseline.median_ms, timing.median_ms / baseline.median_ms, calls)


def sweep(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return headings and a row for each variant and session at each point of the sweep, or an empty list."""
    if len(manifest.points) < 2:
        return []
    example, *others = manifest.points
    titles = [", ".join(f"{name} {size}" for name, size in sizes.items()) for sizes in manifest.points.values()]
    lines: list[tuple[str, ...]] = [("variant", "session", *titles)]
    for variant in manifest.variants:
        for session, timing in variant.timings.items():
            timings = {example: timing} | {p: t[session] for p, t in variant.sweep.items() if session in t}
            cells = (_rate(manifest, point, timings.get(point)) for point in (example, *others))
            lines.append((variant.name, session, *cells))
    return lines


def _rate(manifest: Manifest, point: str, timing: Timing | None) -> str:
    if timing is None:
        return "-"
    rate = manifest.points[point].get("batch", manifest.model.sizes.get("batch", 1)) / timing.median_ms * 1000
    return f"{number(timing.median_ms)} ms{'' if timing.stable else ' ~'}, {number(rate)}/s"


def _row(variant: VariantRecord, session: SessionRecord | None, manifest: Manifest) -> tuple[str, ...]:
    timing = variant.timings.get(session.session) if session else None
    name = variant.name + (f" [{session.provider}]" if session and session.provider else "")
    language = session.session if session else "-"
    metric = (_metric(variant, language),) if manifest.metric else ()
    return name, language, *_latency(timing), _parity(variant, session), *metric, *_cost(variant)


def _metric(variant: VariantRecord, session: str) -> str:
    """Return the metric for the Python session, the only one it is computed in, and "-" for others."""
    return "-" if variant.metric is None or session != "python" else f"{variant.metric:.4g}"


def _latency(timing: Timing | None) -> tuple[str, str, str, str]:
    if timing is None:
        return "-", "-", "-", "-"
    low, high = timing.ci95_ms
    mark = "" if timing.stable else " ~"
    speed = "-" if timing.speedup is None else f"{timing.speedup:.2f}x"
    spread = f"{number(timing.min_ms)}…{number(timing.max_ms)}"
    return f"{within(timing.median_ms, (high - low) / 2)} ms{mark}", spread, str(timing.runs), speed


def _parity(variant: VariantRecord, session: SessionRecord | None) -> str:
    if session is None:
        return UNCHECKED if variant.stage == UNCHECKED else f"FAIL ({variant.stage})"
    if session.parity is None:
        return f"FAIL ({session.stage})"
    return session.parity.verdict


def _cost(variant: VariantRecord) -> tuple[str, str]:
    size = size_of(sum(file.bytes for file in variant.files)) if variant.artifact else "-"
    seconds = _build_s(variant)
    return size, "-" if seconds is None else f"{seconds:.1f} s"


def _build_s(variant: VariantRecord) -> float | None:
    """Return the seconds of the export, or of the first call if that compiles the variant."""
    seconds = variant.lifecycle.export_s
    if seconds is None and _just_in_time(variant):
        return (variant.lifecycle.first_call_ms or 0.0) / 1000
    return seconds


def _just_in_time(variant: VariantRecord) -> bool:
    """Return whether the variant was compiled in the process that ran it."""
    built = variant.artifact or variant.rejected
    return not built and variant.lifecycle.first_call_ms is not None and ":" in variant.name


def starts(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return headings and a row for each variant compiled just in time: first call, first call from cache, steady."""
    lines = [_start(variant) for variant in manifest.variants if _just_in_time(variant) and variant.timings]
    return [("just in time", "cold", "cached", "steady", "cache"), *lines] if lines else []


def _start(variant: VariantRecord) -> tuple[str, ...]:
    calls = (variant.lifecycle.first_call_ms, variant.lifecycle.cached_call_ms)
    cold, cached = ("-" if ms is None else f"{number(ms / 1000)} s" for ms in calls)
    steady = f"{number(variant.timings['python'].median_ms)} ms"
    return variant.name, cold, cached, steady, size_of(variant.companions[0].bytes) if variant.companions else "-"


def number(value: float) -> str:
    """Format with about three significant digits, without an exponent and with at most four decimals."""
    return f"{value:.{_decimals(value)}f}"


def within(value: float, half: float) -> str:
    """Format a value with the half width of its interval, with equal decimals. A nonzero half never becomes ±0."""
    decimals = _decimals(value)
    return f"{number(value)} ±{half and max(half, 10**-decimals):.{decimals}f}"


def _decimals(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.0995 or not value else 4


def size_of(count: int) -> str:
    """Format bytes in the largest unit that fits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 100 * factor else f"{count / factor:.0f} {unit}"
    return f"{count} B"


def percentile(timing: Timing, q: int) -> str:
    """Format the percentile, 90 or 99, in ms, or "-" if too few samples are above it."""
    value = {90: timing.p90_ms, 99: timing.p99_ms}[q]
    return "-" if value is None or timing.runs < runs_for(q) else number(value)


def rejected(variant: VariantRecord) -> str:
    """Return the paths, in the bundle, of a failed variant's files, or ""."""
    return ", ".join(file.path for file in variant.rejected)


def _count(number: int) -> str:
    """Return a number of parameters: `109.5 M`, `20.9 k` or `812`."""
    if number < 1e3:
        return str(number)
    return f"{number / 1e6:.1f} M" if number >= 1e5 else f"{number / 1e3:.1f} k"


def failures(manifest: Manifest) -> list[VariantRecord]:
    """Return the failed variants."""
    return [v for v in manifest.variants if v.status == "failed"]


def failed_together(manifest: Manifest) -> list[tuple[str, VariantRecord]]:
    """Return the failures with the names of their variants: one for all that failed when the model was prepared.

    That fails every variant for the same reason; the first one's record stands for them.
    """
    groups: dict[tuple[str, ...], list[VariantRecord]] = {}
    for variant in failures(manifest):
        alone = "" if variant.stage == "prepare" else variant.name
        groups.setdefault((alone, variant.stage, variant.reason, variant.remedy), []).append(variant)
    return [(", ".join(variant.name for variant in group), group[0]) for group in groups.values()]


def heading(manifest: Manifest) -> list[str]:
    """Return lines that say what was measured, on which device and against which reference."""
    model, env = manifest.model, manifest.environment
    sizes = ", ".join(f"{name} {size}" for name, size in model.sizes.items())
    kind, _, index = manifest.device.partition(":")
    device = env.get("cpu", "CPU") if kind == "cpu" else env.get(f"gpu{index or 0}", "GPU")
    lines = [
        f"{model.name} ({_count(model.parameters)} parameters, {model.weights} weights)"
        if manifest.contract
        else model.name,  # preparing it failed
        f"{manifest.device}: {device}, {manifest.threads} threads, {env.get('isa', '')}; "
        f"torch {env.get('torch', '?')}; {manifest.created[:10]}",
    ]
    lines[0] += f", {sizes}" if sizes else ""
    symbols = manifest.contract.symbols if manifest.contract else {}
    if symbols:
        lines[0] += "; dynamic: " + ", ".join(f"{name} {r}" for name, r in symbols.items())
    if manifest.contract and manifest.contract.state:
        names = ", ".join(tensor.name for tensor in manifest.contract.state.tensors)
        keeper = "kept in the artifacts" if manifest.contract.state.kept == "inside" else "passed by the caller"
        lines[0] += f"; state: {names} ({keeper})"
    if manifest.golden:
        golden = manifest.golden
        noise = "" if golden.eager_rmse is None else f"; eager's own error {golden.eager_rmse:.1e} RMSE"
        tolerance = OutputTolerances(golden.tolerance, golden.tolerances)
        reference = (
            "eager in float64" if golden.reference == "float64" else "eager, because the model does not run in float64"
        )
        lines.append(f"parity over {len(golden.cases)} cases against {reference}, {tolerance}{noise}")
    if metric := manifest.metric:
        bounds = (("at least", metric.least), ("maximum loss", metric.most_loss))
        limits = "".join(f", {words} {bound:g}" for words, bound in bounds if bound is not None)
        lines.append(f"metric of eager {metric.eager:.4g} over {metric.samples} samples, higher is better{limits}")
    return lines


def notes(variant: VariantRecord, threads: int) -> list[str]:
    """Return the notes on a variant loaded with so many threads, what tuning found, and why it was not timed."""
    untimed = [f"not timed: {variant.untimed}"] if variant.untimed else []
    return [*variant.notes, *tuning_records.told(variant.tuning, threads), *untimed]


def hints(manifest: Manifest) -> list[str]:
    """Return warnings, with remedies where there are any."""
    found = list(manifest.warnings)
    found += [f"nothing was timed at {point}: {why}" for point, why in manifest.untimed.items()]
    timed = [(v, t) for v in manifest.variants for t in v.timings.values()]
    if any(not t.stable for _, t in timed):
        found.append(f"{UNSTABLE} raise --time-budget, or stop other programs")
    runner, _, why = manifest.environment.get("exporter-run", "").partition(": ")
    if runner == "none":
        remedy = runners.NO_COMPILER if manifest.environment.get("compiler") == "none" else runners.REMEDY
        found.append(f"no C++ rows: {why or f'{runners.NAME} is not built; {remedy}'}")
    return found
