"""Check the measurements of a variant against its gates. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter import targets
from exporter.core import runners
from exporter.core.parity_records import VERDICTS
from exporter.core.records import EAGER, MetricRecord, VariantRecord
from exporter.core.size_range import Range
from exporter.core.timing_records import Timing, runs_for
from exporter.release.plan import Gates
from exporter.report.rows import number, size_of


@dataclass(frozen=True)
class Measurements:
    """The values that gates check. Latencies are from the fastest session, or the C++ one if the gate `cpp` is set.

    `speedup` is relative to eager, timed in the same run, and `speedup_ci95` is its 95% interval. The interval of a
    latency that is not `stable` stayed wide.
    """

    parity: str = ""
    session: str = ""
    p99_ms: float | None = None
    stable: bool = True
    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    bytes: int = 0
    cpp: bool = False
    metric: float | None = None
    metric_loss: float | None = None  # eager's metric minus the variant's
    propagates: bool | None = None  # whether NaN and infinity reach the outputs wherever they do in eager


@dataclass(frozen=True)
class Check:
    """The result of one gate: its limit, the measured value, and a text that contains both."""

    gate: str
    limit: str | float | bool
    measured: str | float | bool | None
    passed: bool
    text: str


def measure(record: VariantRecord, cpp: bool = False, metric: MetricRecord | None = None) -> Measurements:
    """Return the values that gates check, with `cpp` from the C++ session only. `metric` is eager's."""
    loss = metric.eager - record.metric if metric is not None and record.metric is not None else None
    session, timing = _fastest(record, cpp)
    lost = record.parity.unpropagated if record.parity else None
    return Measurements(
        parity=record.parity.verdict if record.parity else "",
        session=session,
        p99_ms=timing.p99_ms if timing and timing.runs >= runs_for(99) else None,
        stable=timing is None or timing.stable,
        speedup=timing.speedup if timing else None,
        speedup_ci95=timing.speedup_ci95 if timing else None,
        bytes=sum(file.bytes for file in record.files),
        cpp=any(s.session == "native" and s.status == "passed" for s in record.sessions),
        metric=record.metric,
        metric_loss=loss,
        propagates=None if lost is None else not lost,
    )


def _fastest(record: VariantRecord, cpp: bool) -> tuple[str, Timing | None]:
    timed = [(s, t) for s, t in record.timings.items() if s == "native" or not cpp]
    return min(timed, key=lambda one: one[1].median_ms, default=("", None))


def check(gates: Gates, found: Measurements, over: Measurements | None = None) -> tuple[Check, ...]:
    """Check every gate that is set. `over` holds the measurements of the variant `gates.over`.

    The speed-up over another variant is the ratio of the two speed-ups over eager. The lower end of its interval is the
    lower end for this variant divided by the upper end for the other. A gate without a measured value fails.
    """
    checks = []
    if gates.parity:
        kept = found.parity in VERDICTS[: VERDICTS.index(gates.parity) + 1]
        checks.append(
            _check("parity", gates.parity, found.parity or None, kept, f"the worst allowed is {gates.parity}")
        )
    if gates.propagate_nan:
        wanted = "NaN and infinity must propagate as in eager"
        checks.append(_check("propagate_nan", True, found.propagates, bool(found.propagates), wanted))
    if gates.max_p99_ms is not None:
        kept = found.p99_ms is not None and found.p99_ms <= gates.max_p99_ms
        checks.append(_check("max_p99_ms", gates.max_p99_ms, found.p99_ms, kept, f"at most {gates.max_p99_ms:g} ms"))
    if gates.min_speedup is not None:
        low = _speedup(found, None if gates.over == EAGER else over or Measurements())
        kept = low is not None and low >= gates.min_speedup
        wanted = f"at least {gates.min_speedup:g}x {gates.over} at the interval's lower end"
        if low is None and found.speedup_ci95:
            wanted += f"; {gates.over} has no timing: run its step too"
        checks.append(_check("min_speedup", gates.min_speedup, low, kept, wanted))
    if gates.max_mb is not None:
        kept = found.bytes <= gates.max_mb * 1e6
        checks.append(_check("max_mb", gates.max_mb, found.bytes / 1e6, kept, f"at most {gates.max_mb:g} MB"))
    if gates.cpp:
        runs = " and ".join(targets.native_suffixes())
        wanted = f"it must run in C++ (`{runners.BUILD}` builds exporter-run, which supports {runs})"
        checks.append(_check("cpp", True, found.cpp, found.cpp, wanted))
    if gates.min_metric is not None:
        kept = found.metric is not None and found.metric >= gates.min_metric
        checks.append(_check("min_metric", gates.min_metric, found.metric, kept, f"at least {gates.min_metric:g}"))
    if gates.max_metric_loss is not None:
        kept = found.metric_loss is not None and found.metric_loss <= gates.max_metric_loss
        wanted = f"at most {gates.max_metric_loss:g} less than eager's"
        checks.append(_check("max_metric_loss", gates.max_metric_loss, found.metric_loss, kept, wanted))
    return tuple(checks)


def ranges(asked: Mapping[str, Range], record: VariantRecord) -> tuple[Check, ...]:
    """Return a failed check for each range of the release file that the artifact's contract does not cover."""
    if record.contract is None:
        return ()
    held = record.contract.symbols
    short = {name: wanted for name, wanted in asked.items() if len(wanted.sizes) > 1}
    return tuple(
        Check("ranges", str(wanted), str(held.get(name, "fixed")), False, _narrower(name, held.get(name), wanted))
        for name, wanted in short.items()
        if name not in held or not held[name].covers(wanted)
    )


def _narrower(name: str, held: Range | None, wanted: Range) -> str:
    return (
        f"the artifact takes {name} {held}, not {wanted}" if held else f"the artifact fixes {name}, asked is {wanted}"
    )


def _speedup(found: Measurements, over: Measurements | None) -> float | None:
    """Return the lower end of the interval of the speed-up over eager, or over another variant."""
    if found.speedup_ci95 is None or over is None:
        return found.speedup_ci95[0] if found.speedup_ci95 else None
    return found.speedup_ci95[0] / over.speedup_ci95[1] if over.speedup_ci95 else None


def _check(gate: str, limit: str | float | bool, measured: str | float | bool | None, kept: bool, wanted: str) -> Check:
    return Check(gate, limit, measured, kept, f"{_text(gate, measured)}, {wanted}")


def _text(gate: str, measured: str | float | bool | None) -> str:
    if measured is None:
        return "not measured"
    if gate == "propagate_nan":
        return "all propagate" if measured else "some are lost"
    if isinstance(measured, bool):
        return "runs in C++" if measured else "does not run in C++"
    if isinstance(measured, str):
        return measured
    if gate in ("min_metric", "max_metric_loss"):
        return f"{measured:.4g}"
    units = {"max_p99_ms": f"{number(measured)} ms", "max_mb": size_of(round(measured * 1e6))}
    return units.get(gate, f"{number(measured)}x")
