"""Run the steps of a release. An executor takes steps and yields outcomes; both can be pickled."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exporter.core.errors import BundleError, ExporterError
from exporter.core.progress import Listener
from exporter.release import keys
from exporter.release.plan import Step
from exporter.runs import pipeline
from exporter.workers.children import Zygotes

CHANGED = "what it is made from (its recipe, another file or a version) changed after the release began"
AGAIN = "run the release again with --resume: it repeats the steps that depend on the change"


@dataclass(frozen=True)
class Outcome:
    """Where a step's bundle is, if there is one, and why the step failed beyond what the bundle says."""

    place: Path | None = None
    reason: str = ""
    remedy: str = ""
    seconds: float = 0.0  # how long the export took


Outcomes = Generator[tuple[Step, Outcome], None, None]


class Executor(Protocol):
    """Runs steps with `perform`, in any order and in any process."""

    def run(self, steps: Sequence[Step], listener: Listener) -> Outcomes:
        """Yield each step with its outcome as it ends. Closing the generator stops the steps that still run."""
        ...


def is_changed(step: Step) -> bool:
    """Return whether the step's key is no longer the one that it had when the release began."""
    return bool(step.key) and not keys.is_still(step.request, step.key, step.files)


def perform(
    step: Step, listener: Listener | None = None, place: Path | None = None, zygotes: Zygotes | None = None
) -> Outcome:
    """Export a step's bundle, in jobs forked from `zygotes`, and return the outcome.

    The bundle is written at `place` if the caller moves it from there. The outcome holds any failure of this step; one
    whose key is no longer `step.key` does not begin. Raises BundleError if the disk fails.
    """
    began = time.monotonic()
    if is_changed(step):
        return Outcome(None, CHANGED, AGAIN)
    try:
        _, made = pipeline.run(step.request, listener, place, zygotes)
    except BundleError:
        raise
    except ExporterError as error:
        return Outcome(None, str(error), error.remedy, time.monotonic() - began)
    return Outcome(made, seconds=time.monotonic() - began)


@dataclass(frozen=True)
class Local:
    """Runs steps on this machine: first those that are not timed, `jobs` at once, then the timed ones in sequence."""

    jobs: int = 1

    def run(self, steps: Sequence[Step], listener: Listener) -> Outcomes:
        """Run the steps as `Executor.run` does."""
        together = [step for step in steps if self.jobs > 1 and not step.request.bench]
        if together:
            yield from _side_by_side(together, self.jobs)
        with Zygotes() as zygotes:
            for step in steps:
                if step not in together:
                    yield step, perform(step, _Named(step, listener), zygotes=zygotes)


_OF_WORKER = Zygotes()  # each worker of the pool has its own, which ends with the worker


def _side_by_side(steps: Sequence[Step], jobs: int) -> Outcomes:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(steps)), context, _end_with_parent) as pool:
        running = {pool.submit(_perform_in_worker, step): step for step in steps}
        try:
            for done in as_completed(running):
                yield running[done], _outcome(done)
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _perform_in_worker(step: Step) -> Outcome:
    return perform(step, zygotes=_OF_WORKER)


def _outcome(done: Future[Outcome]) -> Outcome:
    try:
        return done.result()
    except BrokenProcessPool:  # one killed worker ends every step in the pool
        return Outcome(None, "a worker process was killed", "memory may have run out: use --resume with fewer --jobs")


def _end_with_parent() -> None:
    """End this worker when its parent ends, for whatever reason, so that the lock of its step is released."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@dataclass
class _Named(Listener):
    """Reports the stages of a step under the step's name."""

    step: Step
    listener: Listener

    def stage(self, variant: str, stage: str) -> None:
        """Report that the step has reached a stage."""
        self.listener.stage(self.step.name, stage)
