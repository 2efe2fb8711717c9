"""Run a release: run the steps that are not finished, record them and check their gates.

All steps of a release are made from the same files and versions: a step fails if its key has changed, when it starts
or when it ends, since the release began.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from exporter.bundle import layout, publishing
from exporter.core import filesystem
from exporter.core.errors import BundleError
from exporter.core.progress import Listener
from exporter.core.records import Manifest, VariantRecord
from exporter.release import keys
from exporter.release.executor import AGAIN, CHANGED, Executor, Outcome
from exporter.release.gates import Check, Measurements, check, measure, ranges
from exporter.release.plan import Step
from exporter.release.state import Journal


@dataclass(frozen=True)
class Row:
    """The result of a step: its bundle, the measurements and the checks of its gates, or the reason why it failed."""

    step: Step
    place: Path | None = None
    kept: bool = False  # whether the bundle is from an earlier run
    reason: str = ""
    remedy: str = ""
    reproduce: str = ""  # a command that exports a variant that failed
    measured: Measurements = field(default_factory=Measurements)
    checks: tuple[Check, ...] = ()
    seconds: float = 0.0  # how long this run exported it; 0 if it was kept

    @property
    def passed(self) -> bool:
        """Whether the variant and all its gates passed."""
        return not self.reason and all(one.passed for one in self.checks)


def kept(steps: Sequence[Step], out: Path) -> set[str]:
    """Return the names of the steps that a resumed release into `out` would skip."""
    return set(_finished(Journal(out), steps, _keys(steps)))


def run(
    steps: Sequence[Step], chosen: Sequence[Step], out: Path, resume: bool, executor: Executor, listener: Listener
) -> list[Row]:
    """Run the chosen steps of a release, with `resume` only those that are not finished, and return a row for each.

    The row of a failed step holds the reason, also if its bundles cannot be moved at the end. Raises BundleError if
    the directory is in use or cannot be written to. Finished steps are then kept, and every other step keeps its last
    bundle.
    """
    with _opened(out) as state:
        found = _keys(steps)
        done = _finished(state, steps if resume else [step for step in steps if step not in chosen], found)
        todo = [step for step in chosen if step.name not in done]
        todo = [replace(step, key=found[step.name], files=keys.paths(step.request)) for step in todo]
        for step in todo:
            publishing.refuse_foreign(step.request.out)
        state.forget(todo)
        outcomes: dict[str, Outcome] = {}
        try:
            for step in todo:
                _hold(step)
            with contextlib.closing(executor.run(todo, listener)) as running:
                for step, outcome in running:
                    if outcome.place:
                        done[step.name] = layout.read_manifest(outcome.place)
                    if not outcome.reason and not keys.is_still(step.request, step.key, step.files):
                        outcome = replace(outcome, reason=CHANGED, remedy=AGAIN)
                    outcomes[step.name] = outcome
                    record = _record(step, done.get(step.name), outcome)
                    if record.status == "passed" and keys.is_still(step.request, step.key):
                        state.keep(step, step.key)
                    listener.done(replace(record, name=step.name))
        except BaseException:
            for step in todo:
                known = outcomes.get(step.name)
                if _is_held_twice(step) or (known and _row(step, done, known).passed):
                    with contextlib.suppress(OSError):
                        filesystem.remove_tree(_held(step))
            raise
        finally:
            for step in todo:
                _remove_empty(step.request.out.parent, out)
        rows = [_attempted(_put_back, _row(step, done, outcomes.get(step.name))) for step in chosen]
        return [_attempted(functools.partial(_settled, state), row) for row in rows]


def require_writable(steps: Sequence[Step], out: Path) -> None:
    """Raise BundleError if `run` could not write the bundles of these steps into `out`. Nothing is written."""
    nearest = next(path for path in (out, *out.parents) if os.path.lexists(path))
    number = 0
    if not nearest.is_dir():
        number = errno.EEXIST if nearest == out else errno.ENOTDIR
    elif not os.access(nearest, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(nearest).f_flag & os.ST_RDONLY else errno.EACCES
    if number:
        raise filesystem.error(OSError(number, os.strerror(number), str(out)), out)
    for step in steps:
        publishing.refuse_foreign(step.request.out)


def _held(step: Step) -> Path:
    """Return the path where a step's last bundle is held until the gates of the new one have been checked."""
    place = publishing.destination(step.request.out)
    return place.with_name(f".{place.name}.last")


def _hold(step: Step) -> None:
    """Hold the bundle that is in the step's place, by hard links. One that a killed release held takes precedence."""
    place, held = publishing.destination(step.request.out), _held(step)
    if held.exists() and not place.exists():
        held.rename(place)
    if not held.exists() and (place / layout.MANIFEST).exists():
        partial = held.with_name(held.name + filesystem.NEW)  # a held bundle is complete, even if this is interrupted
        filesystem.remove_tree(partial)
        try:
            filesystem.link_tree(place, partial)
            partial.rename(held)
        finally:
            with contextlib.suppress(OSError):
                filesystem.remove_tree(partial)


def _is_held_twice(step: Step) -> bool:
    """Return whether the held bundle is the one in the step's place."""
    place, held = step.request.out / layout.MANIFEST, _held(step) / layout.MANIFEST
    return place.is_file() and held.is_file() and place.read_bytes() == held.read_bytes()


def _remove_empty(folder: Path, out: Path) -> None:
    """Remove a folder in `out`, and those around it, where no step left anything."""
    with contextlib.suppress(OSError):
        while out in folder.parents:
            folder.rmdir()
            folder = folder.parent


def _attempted(act: Callable[[Row], Row], row: Row) -> Row:
    """Return the row that `act` makes of one. Its error becomes the reason of the row, and ends no other step."""
    try:
        return act(row)
    except (BundleError, OSError) as error:
        known = filesystem.error(error, row.step.request.out) if isinstance(error, OSError) else error
        failures = [row.reason] if row.reason else [f"{one.gate}: {one.text}" for one in row.checks if not one.passed]
        return replace(row, reason="; ".join([*failures, str(known)]), remedy=known.remedy)


def _put_back(row: Row) -> Row:
    """Put the held bundle back in place of one that failed, and move that aside."""
    place, held = publishing.destination(row.step.request.out), _held(row.step)
    if row.passed or row.place != row.step.request.out or not held.exists():
        return row
    aside = _aside(row.step)
    filesystem.remove_tree(aside)
    place.rename(aside)
    held.rename(place)
    return replace(row, place=aside)


def _settled(state: Journal, row: Row) -> Row:
    """Remove the held bundle if it is not needed, or move one that failed from where it was put aside to its place."""
    place, aside = publishing.destination(row.step.request.out), _aside(row.step)
    if row.passed or row.place not in (row.step.request.out, aside):
        filesystem.remove_tree(_held(row.step))
    if row.place != aside:
        return row
    state.forget([row.step])
    failed = publishing.destination(place.with_name(place.name + publishing.FAILED))
    try:
        publishing.refuse_foreign(failed)
    except BundleError as error:
        raise BundleError(f"{error}; the new bundle is in {aside}", error.remedy) from error
    filesystem.remove_tree(failed)
    aside.rename(failed)
    return replace(row, place=failed)


def _aside(step: Step) -> Path:
    """Return the path of a bundle that failed until it is in its place."""
    place = publishing.destination(step.request.out)
    return place.with_name(f".{place.name}{publishing.FAILED}")


@contextmanager
def _opened(out: Path) -> Iterator[Journal]:
    """Lock the directory against other releases and yield its journal."""
    try:
        with filesystem.explained(out):
            out.mkdir(parents=True, exist_ok=True)
            with filesystem.locked(out / ".lock", out):
                yield Journal(out)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("finished steps are kept: continue with --resume")
        raise


def _keys(steps: Sequence[Step]) -> dict[str, str]:
    return {step.name: keys.key(step.request) for step in steps}


def _finished(state: Journal, steps: Sequence[Step], found: dict[str, str]) -> dict[str, Manifest]:
    manifests = ((step, state.finished(step, found[step.name])) for step in steps)
    return {step.name: manifest for step, manifest in manifests if manifest}


def _record(step: Step, manifest: Manifest | None, outcome: Outcome | None = None) -> VariantRecord:
    """Return the record of the step's variant: a failed one if there is no bundle, or if the outcome is a failure."""
    variant = step.variant
    reason, remedy = (outcome.reason, outcome.remedy) if outcome else ("", "")
    if manifest is None:
        stage = "" if reason == CHANGED else "prepare"
        return VariantRecord(variant.name, variant.target, "failed", stage, reason, remedy)
    record = next(record for record in manifest.variants if record.name == variant.name)
    if reason and record.status == "passed":
        return replace(record, status="failed", stage="", reason=reason, remedy=remedy)
    return record


def _row(step: Step, done: dict[str, Manifest], outcome: Outcome | None) -> Row:
    record = _record(step, done.get(step.name), outcome)
    place, seconds = (outcome.place, outcome.seconds) if outcome else (step.request.out, 0.0)
    if record.status == "failed":
        reason = f"{record.failure}: {record.reason}" if record.stage else record.reason
        again = "" if record.reason == CHANGED else record.reproduce or step.request.reproduce(step.variant.name)
        return Row(step, place, False, reason, record.remedy, again, seconds=seconds)
    baseline = done.get(step.beside(step.gates.over))
    over = measure(next(r for r in baseline.variants if r.name == step.gates.over)) if baseline else None
    measured = measure(record, step.gates.cpp, done[step.name].metric if step.name in done else None)
    checks = check(step.gates, measured, over) + ranges(step.request.ranges, record)
    return Row(step, place, outcome is None, measured=measured, checks=checks, seconds=seconds)
