"""From the manifest to rows of text, the same for every form of the report."""

from __future__ import annotations

import math
from typing import NamedTuple

from exporter.core.records import EAGER, Manifest, SessionRecord, VariantRecord
from exporter.core.timing_records import Timing, runs_for

VS = "vs "  # before the baseline's name


class Payback(NamedTuple):
    """What a variant takes before it serves, and for each call, in calls of the baseline; after how many it takes less.

    `calls` is None where it never does.
    """

    before: float
    each: float
    calls: int | None


def headings(manifest: Manifest) -> tuple[str, ...]:
    """Of the columns."""
    against = VS + manifest.baseline
    metric = ("metric",) if manifest.metric else ()
    return "variant", "session", "median", "min…max", "runs", against, "parity", *metric, "size", "build"


def rows(manifest: Manifest) -> list[tuple[str, ...]]:
    """The cells under `headings` for each variant and session; one row for a variant that came to no session."""
    return [
        _row(variant, session, manifest) for variant in manifest.variants for session in variant.sessions or (None,)
    ]


def others(manifest: Manifest) -> list[list[tuple[str, ...]]]:
    """The tables beside that of `rows`, each with its headings first, where they have anything to say."""
    return list(filter(None, (sweep(manifest), lifecycle(manifest), starts(manifest))))


def lifecycle(manifest: Manifest) -> list[tuple[str, ...]]:
    """Headings, then what each artifact costs before it serves, and after how many calls its build has paid back.

    That is against the baseline, which needs no build. Nothing where nothing was timed.
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
    """When building, loading and calling cost less than the baseline's calls alone; None where that is not known.

    That is also where the interval of the speed-up holds 1. The baseline needs no build. What is compiled just in time
    builds in its first call, and loads as the baseline does.
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
    """Headings, then the cells of each variant and session at each point of the sweep; nothing where there was none."""
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
    """Of the Python session, which is the one that it is computed for."""
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
        return f"FAIL ({variant.stage})"
    if session.parity is None:
        return f"FAIL ({session.stage})"
    return session.parity.verdict


def _cost(variant: VariantRecord) -> tuple[str, str]:
    size = size_of(sum(file.bytes for file in variant.files)) if variant.artifact else "-"
    seconds = _build_s(variant)
    return size, "-" if seconds is None else f"{seconds:.1f} s"


def _build_s(variant: VariantRecord) -> float | None:
    """Seconds of the export; of the first call where that builds."""
    seconds = variant.lifecycle.export_s
    if seconds is None and _just_in_time(variant):
        return (variant.lifecycle.first_call_ms or 0.0) / 1000
    return seconds


def _just_in_time(variant: VariantRecord) -> bool:
    """Whether it was compiled where it ran."""
    built = variant.artifact or variant.rejected
    return not built and variant.lifecycle.first_call_ms is not None and ":" in variant.name


def starts(manifest: Manifest) -> list[tuple[str, ...]]:
    """Headings, then what is compiled just in time: its first call, its first from the cache, the rest."""
    lines = [_start(variant) for variant in manifest.variants if _just_in_time(variant) and variant.timings]
    return [("just in time", "cold", "cached", "steady", "cache"), *lines] if lines else []


def _start(variant: VariantRecord) -> tuple[str, ...]:
    calls = (variant.lifecycle.first_call_ms, variant.lifecycle.cached_call_ms)
    cold, cached = ("-" if ms is None else f"{number(ms / 1000)} s" for ms in calls)
    steady = f"{number(variant.timings['python'].median_ms)} ms"
    return variant.name, cold, cached, steady, size_of(variant.companions[0].bytes) if variant.companions else "-"


def number(value: float) -> str:
    """Three significant digits, without an exponent, and four decimals at most."""
    return f"{value:.{_decimals(value)}f}"


def within(value: float, half: float) -> str:
    """A value and how far the truth may be to either side, as many decimals in both; ±0 is that alone."""
    decimals = _decimals(value)
    return f"{number(value)} ±{half and max(half, 10**-decimals):.{decimals}f}"


def _decimals(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.0995 or not value else 4


def size_of(count: int) -> str:
    """Bytes in the largest unit that fits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 100 * factor else f"{count / factor:.0f} {unit}"
    return f"{count} B"


def percentile(timing: Timing, q: int) -> str:
    """The percentile in ms, 90 or 99; a dash where too few samples are above it."""
    value = {90: timing.p90_ms, 99: timing.p99_ms}[q]
    return "-" if value is None or timing.runs < runs_for(q) else number(value)


def rejected(variant: VariantRecord) -> str:
    """Where the files of a variant that failed are, in the bundle; "" where there are none."""
    return ", ".join(file.path for file in variant.rejected)


def failures(manifest: Manifest) -> list[VariantRecord]:
    """Variants that failed."""
    return [v for v in manifest.variants if v.status == "failed"]


def heading(manifest: Manifest) -> list[str]:
    """What was measured, on what, against what."""
    model, env = manifest.model, manifest.environment
    sizes = ", ".join(f"{name} {size}" for name, size in model.sizes.items())
    kind, _, index = manifest.device.partition(":")
    device = env.get("cpu", "CPU") if kind == "cpu" else env.get(f"gpu{index or 0}", "GPU")
    lines = [
        f"{model.name} ({model.parameters / 1e6:.1f} M parameters, {model.weights} weights)"
        if manifest.contract
        else model.name,  # which could not be prepared
        f"{manifest.device}: {device}, {manifest.threads} threads, {env.get('isa', '')}; "
        f"torch {env.get('torch', '?')}; {manifest.created[:10]}",
    ]
    lines[0] += f", {sizes}" if sizes else ""
    symbols = manifest.contract.symbols if manifest.contract else {}
    if symbols:
        lines[0] += "; dynamic: " + ", ".join(f"{name} {r}" for name, r in symbols.items())
    if manifest.contract and manifest.contract.state:
        names = ", ".join(tensor.name for tensor in manifest.contract.state.tensors)
        whose = "the artifacts keep it" if manifest.contract.state.kept == "inside" else "callers keep it"
        lines[0] += f"; state: {names} ({whose})"
    if manifest.golden:
        golden = manifest.golden
        noise = "" if golden.eager_rmse is None else f"; eager's own error {golden.eager_rmse:.1e} RMSE"
        tolerance = f"rtol {golden.tolerance.rtol:g}, atol {golden.tolerance.atol:g}"
        reference = (
            "eager in float64" if golden.reference == "float64" else "eager, because the model does not run in float64"
        )
        lines.append(f"parity over {len(golden.cases)} cases against {reference}, {tolerance}{noise}")
    if metric := manifest.metric:
        bounds = (("at least", metric.least), ("maximum loss", metric.most_loss))
        said = "".join(f", {words} {bound:g}" for words, bound in bounds if bound is not None)
        lines.append(f"metric of eager {metric.eager:.4g} over {metric.samples} samples, higher is better{said}")
    return lines


def notes(variant: VariantRecord) -> list[str]:
    """What is to be said of a row beside its figures."""
    return [*variant.notes, *([f"not timed: {variant.untimed}"] if variant.untimed else [])]


def hints(manifest: Manifest) -> list[str]:
    """Warnings, each with what cures it."""
    found = list(manifest.warnings)
    found += [f"nothing was timed at {point}: {why}" for point, why in manifest.untimed.items()]
    timed = [(v, t) for v in manifest.variants for t in v.timings.values()]
    if any(not t.stable for _, t in timed):
        found.append("~ unstable: the interval stayed wider than ±3%; raise --time-budget, or stop other programs")
    if manifest.environment.get("exporter-run") == "none":
        found.append(
            "no C++ rows: exporter-run is not built; build it with `make cpp`, or set EXPORTER_RUN to its path"
        )
    return found
