"""Tune a variant: try other choices beside it, one after another, and keep those that are faster and right.

A choice is measured in two pairs of processes, with it and without it, each pair timed in rotation. One pair is not
enough: where its memory happens to lie changes the speed of a process by more than the interval of one pair shows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from exporter import targets
from exporter.bundle import layout
from exporter.core import environment
from exporter.core.errors import ExporterError, JobError
from exporter.core.records import GoldenRecord, SessionRecord, VariantRecord
from exporter.core.tuning_records import Tried, changed
from exporter.evidence import stats
from exporter.runs import latency, session_checks
from exporter.workers.children import Zygote
from exporter.workers.session.client import Session

TIMED_S = 2.0  # most seconds of timed calls of a session, so that more choices can be tried
WITHOUT, WITH = "without the choice", "with the choice"  # names in the rotation


@dataclass(frozen=True)
class Built:
    """An artifact, with the options that built it and that load it. Its record's path is relative to the bundle."""

    record: VariantRecord
    options: targets.Options

    @property
    def artifact(self) -> str:
        """Return the artifact's path in the bundle."""
        return self.record.artifact.path if self.record.artifact else ""


# Exports a variant with these options to a folder in so many seconds; returns its record, or raises ExporterError.
Build = Callable[[targets.Options, Path, float], VariantRecord]


class Ratio(NamedTuple):
    """The latency with a choice over that without it, with the 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Found:
    """What a pair of processes showed: the ratio by session at the example, and why the choice is not kept, if so."""

    ratios: dict[str, Ratio]
    reason: str = ""
    checked: tuple[SessionRecord, ...] = ()

    def tried(self, candidate: targets.Candidate) -> Tried:
        """Return the record of the choice, with the ratio of the session that gains least."""
        tried = Tried(candidate.choice, "advice" if candidate.advice else "kept")
        if self.reason:
            tried = replace(tried, verdict="rejected", reason=self.reason)
        if not self.ratios:
            return tried
        kind, worst = max(self.ratios.items(), key=lambda one: one[1].high)
        return replace(tried, session=kind, ratio=worst.value, low=worst.low, high=worst.high)


@dataclass(frozen=True)
class Tuned:
    """What was tried. `record` is that of the artifact with the choices that were kept, None if there are none."""

    tried: tuple[Tried, ...]
    record: VariantRecord | None = None


@dataclass
class Tuning:
    """Tunes a variant, with nothing else running."""

    variant: targets.Variant
    options: targets.Options  # of the variant as it is
    seconds: float
    bundle: Path
    work: Path  # a folder for builds, inside the bundle's directory
    zygote: Zygote
    golden: GoldenRecord | None
    points: tuple[str, ...]  # to time besides the example
    budget: latency.Budget
    timeout: float
    say: Callable[[str, str], None]  # gets a variant's name, and what is done

    def obstacle(self, fits: bool) -> str:
        """Return why the variant is not tuned; "" if it is. `fits` is whether memory suffices for further sessions."""
        if targets.is_live(self.variant):
            return "it is compiled just in time"
        if not fits:
            return "there is not enough memory to open it beside the others"
        return "" if self.candidates() else f"the target {self.variant.target} has nothing to try"

    def candidates(self) -> list[targets.Candidate]:
        """Return the choices to try here: those of exporter-run only if it runs the target's artifacts."""
        native = environment.find_runner() is not None and targets.is_native(self.variant.target)
        found = targets.facts(self.variant.target).candidates(self.options)
        return [one for one in found if native or not one.native]

    def tune(self, record: VariantRecord, build: Build) -> Tuned:
        """Try the target's choices for a variant that passed; each kept one is part of the variant for the next.

        Raises nothing that a choice raises: that is why it is rejected.
        """
        end = time.monotonic() + self.seconds
        now, tried = Built(record, self.options), []
        for number, candidate in enumerate(self.candidates()):
            left = end - time.monotonic()
            if missing := _too_late(candidate, record, left):
                tried.append(Tried(candidate.choice, "rejected", missing))
                continue
            self.say(record.name, f"tune {candidate.choice}")
            folder = self.work / str(number)
            result, better = self._try(candidate, now, _Builder(build, folder, left))
            tried.append(result)
            if better is not None:
                now = better
            else:
                layout.remove(folder)
        return Tuned(tuple(tried), now.record if now.record is not record else None)

    def _try(self, candidate: targets.Candidate, now: Built, builder: _Builder) -> tuple[Tried, Built | None]:
        """Measure a choice in two pairs of processes; return what was found, and the build with it if it is kept."""
        options = changed(now.options, [candidate.choice])
        try:
            other = replace(now, options=options) if candidate.at_load else _build(builder, self.bundle, options)
            first = self._compare(candidate, now, other, check=False)
            if first.reason:
                return first.tried(candidate), None
            if candidate.at_load and not candidate.advice:  # from here on the artifact itself carries it
                other = _build(builder, self.bundle, options)
            second = self._compare(candidate, now, other, check=True)
        except ExporterError as error:
            return Tried(candidate.choice, "rejected", f"{error}"), None
        if second.reason or candidate.advice:
            return _least(first, second).tried(candidate), None
        other = replace(other, record=session_checks.conclude(other.record, second.checked))
        return _least(first, second).tried(candidate), other

    def _compare(self, candidate: targets.Candidate, now: Built, other: Built, check: bool) -> Found:
        """Open both in new processes, `check` the one with the choice against the golden, and time them."""
        with contextlib.ExitStack() as opened:
            sessions: dict[latency.Key, Session] = {}
            checked: list[SessionRecord] = []
            for kind, opener in self._openers(now, candidate):
                sessions[WITHOUT, kind] = _started(opener, opened)
            for kind, opener in self._openers(other, candidate):
                if not check:
                    sessions[WITH, kind] = _started(opener, opened)
                    continue
                found, session = session_checks.check(kind, opener, other.record, self.golden)
                if session is not None:
                    opened.callback(session.close)
                    sessions[WITH, kind] = session
                if found.status != "passed" or session is None:
                    return Found({}, f"it fails at {found.stage}: {found.reason} ({kind})")
                checked.append(found)
            return replace(self._time(sessions, now.record.name, candidate), checked=tuple(checked))

    def _openers(self, built: Built, candidate: targets.Candidate) -> Iterator[tuple[str, session_checks.Opener]]:
        log = self.bundle / built.record.log
        all_of_them = session_checks.openers(self.zygote, self.bundle, built.record, built.options, log, self.timeout)
        yield from ((kind, opener) for kind, opener in all_of_them if kind == "native" or not candidate.native)

    def _time(self, sessions: dict[latency.Key, Session], name: str, candidate: targets.Candidate) -> Found:
        baseline = next(key for key in sessions if key[0] == WITHOUT)
        progress = self.say
        measured = latency.measure(
            sessions, self.points, self.budget, baseline, lambda *_: progress(name, f"tune {candidate.choice}")
        )
        busy = measured.machine if measured.machine and measured.machine.busy else None
        doubt = f"not faster beyond doubt{f', on a busy machine ({busy.describe()})' if busy else ''}"
        widened = 1 + (busy.lost if busy else 0.0)  # as in the report: a busy machine may favour either
        reason, at_example = "", {}
        for point, series in measured.points.items():
            for kind in (kind for which, kind in series if which == WITH):
                if failed := series[WITH, kind].error or series[WITHOUT, kind].error:
                    return Found({}, f"it fails at {point or 'the example'}: {failed} ({kind})")
                pair = series[WITH, kind].windows, series[WITHOUT, kind].windows
                ratio = Ratio(stats.ratio(*pair), *stats.ratio_interval(*pair))
                if point == latency.EXAMPLE:
                    at_example[kind] = ratio
                    reason = reason or ("" if ratio.high * widened < 1 else f"{doubt} ({kind})")
                elif ratio.low > 1:
                    said = f"{ratio.value:.2f} ({ratio.low:.2f}…{ratio.high:.2f})"
                    reason = reason or f"slower at {point}: {said} times the latency ({kind})"
        return Found(at_example, reason)


@dataclass(frozen=True)
class _Builder:
    """Builds a variant in a folder of its own."""

    export: Build
    folder: Path
    seconds: float

    def build(self, options: targets.Options) -> VariantRecord:
        layout.remove(self.folder)
        self.folder.mkdir(parents=True)
        return self.export(options, self.folder, max(self.seconds, 1.0))


def _build(builder: _Builder, bundle: Path, options: targets.Options) -> Built:
    """Build with these options, inside the bundle's folder."""
    record = builder.build(options)
    if record.artifact is None:
        raise JobError(f"{record.name} wrote no artifact")
    path = (builder.folder / record.artifact.path).relative_to(bundle)
    return Built(replace(record, artifact=replace(record.artifact, path=path.as_posix())), options)


def _started(opener: session_checks.Opener, opened: contextlib.ExitStack) -> Session:
    session = opener()
    opened.callback(session.close)
    session.start()
    return session


def _too_late(candidate: targets.Candidate, record: VariantRecord, left: float) -> str:
    """Return why a choice is not begun with so many seconds left; "" if it is."""
    needed = 0.0 if candidate.at_load else record.lifecycle.export_s or 0.0
    if left > needed:
        return ""
    if left <= 0:
        return "not tried: the time was over"
    return f"not tried: building takes about {needed:.1f} s, and {left:.1f} s were left"


def _least(first: Found, second: Found) -> Found:
    """Return the pair of processes in which a choice gained least, with the reason of either."""
    if not second.ratios:
        return replace(second, ratios=first.ratios)
    worst = max((first, second), key=lambda one: max(ratio.high for ratio in one.ratios.values()))
    return replace(worst, reason=second.reason)


def undone(tried: tuple[Tried, ...], reason: str) -> tuple[Tried, ...]:
    """Return what was tried, with what was kept rejected for this reason."""
    return tuple(replace(one, verdict="rejected", reason=reason) if one.verdict == "kept" else one for one in tried)


@contextlib.contextmanager
def replaced(bundle: Path, old: VariantRecord, new: VariantRecord, aside: Path) -> Iterator[VariantRecord]:
    """Put the files of `new` in the place of those of `old`; yield its record there. Undo it all if the body raises.

    The old files wait in the folder `aside`, which is removed at the end.
    """
    aside.mkdir(parents=True)
    assert new.artifact is not None
    source = (bundle / new.artifact.path).parent
    artifact = replace(new.artifact, path=Path(new.artifact.path).name)
    arrived = (artifact, *new.companions)
    try:
        for file in old.files:
            (bundle / file.path).replace(aside / file.path)
        for file in arrived:
            (source / file.path).replace(bundle / file.path)
        yield replace(new, artifact=artifact)
    except BaseException:
        for file in old.files:
            if (aside / file.path).exists():
                (aside / file.path).replace(bundle / file.path)
        for name in {file.path for file in arrived} - {file.path for file in old.files}:
            (bundle / name).unlink(missing_ok=True)
        raise
    finally:
        layout.remove(aside)
