"""Compare an old and a new bundle of one model: changes for callers, parity, size and latency.

The latencies in the two manifests were measured at different times. Only latencies that are measured again here, in
rotation, have a confidence interval.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from exporter import targets
from exporter.bundle import integrity
from exporter.core import machine_load
from exporter.core.contract_diff import Change, changes
from exporter.core.errors import ArtifactError, ExporterError
from exporter.core.progress import Listener
from exporter.core.records import GoldenRecord, Manifest, VariantRecord
from exporter.core.settings import SessionSettings, TimingSettings
from exporter.core.timing_records import MachineLoad
from exporter.evidence import benchmark, stats
from exporter.runs import session_checks
from exporter.runs.latency import EXAMPLE, At
from exporter.runs.sessions import Sessions
from exporter.workers.children import Zygote

SIDES = ("old", "new")
AGAIN = "compare again on a quiet machine (--wait-quiet SECONDS)"


@dataclass(frozen=True)
class Latency:
    """Median latencies of one session in milliseconds, and the ratio of new to old.

    `ratio_ci95` is the ratio's 95% interval, if both were measured in rotation.
    """

    old_ms: float
    new_ms: float
    ratio: float
    ratio_ci95: tuple[float, float] | None = None


@dataclass(frozen=True)
class Pair:
    """One variant in both bundles."""

    name: str
    changes: tuple[Change, ...]
    verdicts: tuple[str, str]
    bytes: tuple[int, int]
    latency: dict[str, Latency] = field(default_factory=dict)  # by session
    note: str = ""  # why latency was not measured
    busy: str = ""  # the other load on the machine during the measurement
    fails: bool = False  # whether the new variant failed during the measurement


@dataclass(frozen=True)
class Limits:
    """How many percent slower or larger a variant may become, and whether breaking changes are allowed."""

    max_slower: float | None = None
    max_larger: float | None = None
    allow_breaking: bool = False


@dataclass(frozen=True)
class Comparison:
    """Two bundles side by side; `broken` lists each gate that failed, with the reason."""

    old: str
    new: str
    pairs: tuple[Pair, ...]
    gone: tuple[str, ...]
    added: tuple[str, ...]
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimingOptions(TimingSettings, SessionSettings):
    """How sessions run if latency is measured again."""

    timeout: float = 600.0


def run(places: tuple[Path, Path], gates: Limits, how: TimingOptions | None, listener: Listener) -> Comparison:
    """Compare two bundles; with `how`, measure latency again. Raises AlteredError if a file of either was altered."""
    manifests = integrity.whole(places[0]), integrity.whole(places[1])
    shipped = tuple({v.name: v for v in one.variants if v.artifact or v.rejected} for one in manifests)
    both = [name for name in shipped[0] if name in shipped[1]]
    pairs = [_pair(shipped[0][name], shipped[1][name]) for name in both]
    if how is not None:
        pairs = _measured(pairs, places, manifests, shipped, how, listener)
    found = Comparison(
        str(places[0]),
        str(places[1]),
        tuple(pairs),
        tuple(name for name in shipped[0] if name not in shipped[1] and shipped[0][name].status == "passed"),
        tuple(name for name in shipped[1] if name not in shipped[0]),
    )
    broken = _broken(found, gates)
    if shipped[0] and shipped[1] and not both:
        old, new = map(", ".join, shipped)
        broken = [f"they have no variant in common: the old bundle has {old}, and the new one {new}"]
    if not any(variant.status == "passed" for variant in shipped[1].values()):
        broken.append("no artifact in the new bundle passed")
    return replace(found, broken=tuple(broken))


def _pair(old: VariantRecord, new: VariantRecord) -> Pair:
    if old.contract is None or new.contract is None:
        raise ArtifactError(f"{old.name} has no contract in its manifest", "export again")
    return Pair(
        old.name,
        changes(old.contract, new.contract),
        (_verdict(old), _verdict(new)),
        (_bytes(old), _bytes(new)),
        {
            session: _recorded(before.median_ms, new.timings[session].median_ms)
            for session, before in old.timings.items()
            if session in new.timings and before.median_ms > 0
        },
    )


def _bytes(variant: VariantRecord) -> int:
    return sum(file.bytes for file in (*variant.files, *variant.rejected))


def _recorded(old_ms: float, new_ms: float) -> Latency:
    return Latency(old_ms, new_ms, new_ms / old_ms)


def _verdict(variant: VariantRecord) -> str:
    return variant.parity.verdict if variant.status == "passed" and variant.parity else "FAIL"


def _broken(found: Comparison, gates: Limits) -> list[str]:
    broken = [f"{name} is missing" for name in found.gone]
    for pair in found.pairs:
        if pair.verdicts[1] == "FAIL" != pair.verdicts[0]:
            broken.append(f"{pair.name} passed in the old bundle and fails in the new one")
        if not gates.allow_breaking:
            broken += [f"{pair.name}: {change.what}" for change in pair.changes if change.breaking]
        if pair.fails or (pair.note and gates.max_slower is not None):
            broken.append(f"{pair.name}: {pair.note}")
        larger = 100 * (pair.bytes[1] / max(pair.bytes[0], 1) - 1)
        if gates.max_larger is not None and pair.bytes[1] > pair.bytes[0] * (1 + gates.max_larger / 100):
            broken.append(f"{pair.name} is {larger:.1f}% larger; the limit is {gates.max_larger:g}%")
        for session, latency in pair.latency.items():
            least = latency.ratio_ci95[0] if latency.ratio_ci95 else latency.ratio
            if gates.max_slower is not None and 100 * (least - 1) > gates.max_slower:
                verb = "seems to be" if pair.busy else "is"
                doubt = f", but {pair.busy}: {AGAIN}" if pair.busy else ""
                slower = f"{verb} {100 * (latency.ratio - 1):.1f}% slower; the limit is {gates.max_slower:g}%"
                broken.append(f"{pair.name} ({session}) {slower}{doubt}")
    return broken


def _measured(
    pairs: Sequence[Pair],
    places: tuple[Path, Path],
    manifests: tuple[Manifest, Manifest],
    shipped: Sequence[Mapping[str, VariantRecord]],
    how: TimingOptions,
    listener: Listener,
) -> list[Pair]:
    """Return the pairs with their latency measured now; a pair that cannot be measured has a note with the reason."""
    if manifests[0].model.sizes != manifests[1].model.sizes or manifests[0].device != manifests[1].device:
        note = "not measured: the bundles differ in sizes or device"
        return [replace(pair, latency={}, note=note) for pair in pairs]
    options = targets.Options(device=manifests[1].device, threads=how.threads, ops_libs=how.ops_libs)
    measured = []
    if how.wait_quiet and pairs:
        machine_load.wait(how.wait_quiet, lambda stage: listener.stage(pairs[0].name, stage))
    with Zygote() as zygote, tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        for pair in pairs:
            listener.stage(pair.name, "time")
            if "FAIL" in pair.verdicts:
                measured.append(replace(pair, latency={}, note="not measured: it does not pass in both bundles"))
                continue
            sides = [
                _Side(place, one[pair.name], manifest.golden)
                for place, one, manifest in zip(places, shipped, manifests, strict=True)
            ]
            measured.append(_time(pair, zygote, sides, options, Path(folder), how))
    return measured


@dataclass(frozen=True)
class _Side:
    """One bundle's side of a pair."""

    place: Path
    record: VariantRecord
    golden: GoldenRecord | None


def _time(
    pair: Pair,
    zygote: Zygote,
    sides: Sequence[_Side],
    options: targets.Options,
    folder: Path,
    how: TimingOptions,
) -> Pair:
    """Time both sides of a variant in rotation, in each language that can run both."""
    log = folder / "sessions.log"
    openers = [dict(session_checks.openers(zygote, one.place, one.record, options, log, how.timeout)) for one in sides]
    found: dict[str, Latency] = {}
    busiest: MachineLoad | None = None
    for kind in openers[0]:
        if kind not in openers[1]:
            continue
        with Sessions() as sessions:
            for side, opener, one in zip(SIDES, openers, sides, strict=True):
                (result,) = sessions.judge(one.record, one.golden, [(kind, opener[kind])], keep=side)
                if result.status == "failed":
                    return _failed(pair, side, result.reason)
            subjects = {side: At(session, EXAMPLE) for (side, _), session in sessions.kept.items()}
            watch = machine_load.Watch()
            try:
                series = benchmark.measure(subjects, how.time_budget, "old")
            except ExporterError as error:
                return _failed(pair, "old", str(error))
            if failed := series["new"].error:
                return _failed(pair, "new", str(failed))
            busiest = machine_load.busier(busiest, watch.load())
        old, new = series["old"].windows, series["new"].windows
        old_ms, new_ms = (stats.median([stats.median(window) for window in windows]) for windows in (old, new))
        found[kind] = Latency(old_ms, new_ms, stats.ratio(new, old), stats.ratio_interval(new, old))
    busy = f"the machine was busy during timing: {busiest.describe()}" if busiest else ""
    return replace(pair, latency=found, busy=busy)


def _failed(pair: Pair, side: str, reason: str) -> Pair:
    return replace(pair, latency={}, note=f"the {side} variant fails here: {reason}", fails=side == "new")
