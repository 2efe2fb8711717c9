"""A release made: the steps that need it, one record of each, and what became of every gate."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from exporter.bundle import layout, publishing
from exporter.core import filesystem
from exporter.core.errors import ExporterError
from exporter.core.progress import Listener
from exporter.core.records import Manifest, VariantRecord
from exporter.release import keys
from exporter.release.executor import Executor, Outcome
from exporter.release.gates import Check, Measurements, check, measure
from exporter.release.plan import Step
from exporter.release.state import Journal


@dataclass(frozen=True)
class Row:
    """What became of a step: where its bundle is, what was measured, which gates it keeps; or why it failed."""

    step: Step
    place: Path | None = None
    kept: bool = False  # from an earlier run
    reason: str = ""
    remedy: str = ""
    measured: Measurements = field(default_factory=Measurements)
    checks: tuple[Check, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether its variant passed, and every gate."""
        return not self.reason and all(one.passed for one in self.checks)


def kept(steps: Sequence[Step], out: Path) -> set[str]:
    """Names of the steps that a resumed release into `out` would not make again."""
    return set(_finished(Journal(out), steps, _keys(steps)))


def run(
    steps: Sequence[Step], chosen: Sequence[Step], out: Path, resume: bool, executor: Executor, listener: Listener
) -> list[Row]:
    """Make the chosen ones of a release's steps; with `resume`, those of them that are not finished. A row for each.

    A step that fails is a row. BundleError when the directory is in use, or cannot be written to: what was finished
    stays, and so does the last bundle of every step that was not.
    """
    with _opened(out) as state:
        found = _keys(steps)
        done = _finished(state, steps if resume else [step for step in steps if step not in chosen], found)
        todo = [step for step in chosen if step.name not in done]
        for step in todo:
            publishing.refuse_foreign(step.request.out)
        state.forget(todo)
        for step in todo:
            _hold(step)
        outcomes: dict[str, Outcome] = {}
        try:
            with contextlib.closing(executor.run(todo, listener)) as running:
                for step, outcome in running:
                    outcomes[step.name] = outcome
                    if outcome.place:
                        done[step.name] = layout.read_manifest(outcome.place)
                    record = _record(step, done.get(step.name), outcome)
                    if record.status == "passed" and _is_still(step, found[step.name]):
                        state.keep(step, found[step.name])
                    listener.done(replace(record, name=step.name))
        except BaseException:
            for step in todo:
                known = outcomes.get(step.name)
                if _is_held_twice(step) or (known and _row(step, done, known).passed):
                    shutil.rmtree(_held(step), ignore_errors=True)
            raise
        return [_settled(state, _row(step, done, outcomes.get(step.name))) for step in chosen]


def _held(step: Step) -> Path:
    """Where the bundle in a step's place is kept until the gates of the next one have been judged."""
    return step.request.out.with_name(f".{step.request.out.name}.last")


def _hold(step: Step) -> None:
    """Keep the bundle in the step's place, by links to its files; one that a killed release has kept stays."""
    place, held = step.request.out, _held(step)
    if held.exists() and not place.exists():
        held.rename(place)
    if not held.exists() and (place / layout.MANIFEST).exists():
        shutil.copytree(place, held, symlinks=True, copy_function=_link)


def _is_held_twice(step: Step) -> bool:
    """Whether what is kept is what stands in the step's place."""
    place, held = step.request.out / layout.MANIFEST, _held(step) / layout.MANIFEST
    return place.is_file() and held.is_file() and place.read_bytes() == held.read_bytes()


def _link(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:  # the file system has no links
        shutil.copy2(source, to)


def _settled(state: Journal, row: Row) -> Row:
    """The row, once its bundle is where it belongs: one that keeps no gate gives way to what was in its place."""
    place, held = row.step.request.out, _held(row.step)
    if not held.exists():
        return row
    if row.passed or row.place != place:
        shutil.rmtree(held)
        return row
    failed = place.with_name(place.name + publishing.FAILED)
    publishing.refuse_foreign(failed)
    if failed.exists():
        shutil.rmtree(failed)
    place.rename(failed)
    held.rename(place)
    state.forget([row.step])
    return replace(row, place=failed)


@contextmanager
def _opened(out: Path) -> Iterator[Journal]:
    """The state of the release in a directory that nobody else writes to meanwhile."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with filesystem.locked(out / ".lock", out):
            yield Journal(out)
    except OSError as error:
        raise filesystem.error(error, out) from error
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("finished steps are kept: continue with --resume")
        raise


def _keys(steps: Sequence[Step]) -> dict[str, str]:
    return {step.name: keys.key(step.request) for step in steps}


def _is_still(step: Step, key: str) -> bool:
    """Whether what the step is made of is what it was when the release began, which may be hours ago."""
    try:
        return keys.key(step.request) == key
    except (ExporterError, OSError):
        return False


def _finished(state: Journal, steps: Sequence[Step], found: dict[str, str]) -> dict[str, Manifest]:
    manifests = ((step, state.finished(step, found[step.name])) for step in steps)
    return {step.name: manifest for step, manifest in manifests if manifest}


def _record(step: Step, manifest: Manifest | None, outcome: Outcome | None = None) -> VariantRecord:
    """The step's variant; a failed one where there is no bundle."""
    variant = step.variant
    if manifest is not None:
        return next(record for record in manifest.variants if record.name == variant.name)
    reason, remedy = (outcome.reason, outcome.remedy) if outcome else ("", "")
    return VariantRecord(variant.name, variant.target, "failed", "prepare", reason, remedy)


def _row(step: Step, done: dict[str, Manifest], outcome: Outcome | None) -> Row:
    record = _record(step, done.get(step.name), outcome)
    place = outcome.place if outcome else step.request.out
    if record.status == "failed":
        return Row(step, place, False, f"failed at {record.stage}: {record.reason}", record.remedy)
    baseline = done.get(step.beside(step.gates.over))
    over = measure(next(r for r in baseline.variants if r.name == step.gates.over)) if baseline else None
    measured = measure(record, step.gates.cpp, done[step.name].metric if step.name in done else None)
    return Row(step, place, outcome is None, measured=measured, checks=check(step.gates, measured, over))
