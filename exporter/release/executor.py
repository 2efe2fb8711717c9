"""Who runs the steps. An executor takes steps and gives outcomes as they come; both are plain data and may travel."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from exporter.core.errors import BundleError, ExporterError
from exporter.core.progress import Listener
from exporter.release.plan import Step
from exporter.runs import pipeline
from exporter.workers.children import Zygotes


@dataclass(frozen=True)
class Outcome:
    """Where a step's bundle is; or, where there is none, why."""

    place: Path | None = None
    reason: str = ""
    remedy: str = ""


Outcomes = Generator[tuple[Step, Outcome], None, None]


class Executor(Protocol):
    """Runs steps, in any order, wherever `perform` can."""

    def run(self, steps: Sequence[Step], listener: Listener) -> Outcomes:
        """Each step with its outcome, as it ends. Closing the generator ends what still runs."""
        ...


def perform(
    step: Step, listener: Listener | None = None, place: Path | None = None, zygotes: Zygotes | None = None
) -> Outcome:
    """Make a step's bundle, at `place` for who moves it from there, in jobs that are forked from `zygotes`.

    What is wrong with this step alone is its outcome; BundleError for the disk.
    """
    try:
        _, made = pipeline.run(step.request, listener, place, zygotes)
    except BundleError:
        raise
    except ExporterError as error:
        return Outcome(None, str(error), error.remedy)
    return Outcome(made)


@dataclass(frozen=True)
class Local:
    """This machine: what is timed one step after the other; what is not, `jobs` steps side by side before that."""

    jobs: int = 1

    def run(self, steps: Sequence[Step], listener: Listener) -> Outcomes:
        """As `Executor.run`."""
        together = [step for step in steps if self.jobs > 1 and not step.request.bench]
        if together:
            yield from _side_by_side(together, self.jobs)
        with Zygotes() as zygotes:
            for step in steps:
                if step not in together:
                    yield step, perform(step, _Named(step, listener), zygotes=zygotes)


_OF_WORKER = Zygotes()  # of each worker of the pool; they end with it


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
    except BrokenProcessPool:  # it takes along what ran beside it
        return Outcome(None, "a worker process was killed", "memory may have run out: use --resume with fewer --jobs")


def _end_with_parent() -> None:
    """Let a worker end with the process that started it, however that ends: its step's lock is then free."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@dataclass
class _Named(Listener):
    """Tells of a step under its name."""

    step: Step
    listener: Listener

    def stage(self, variant: str, stage: str) -> None:
        """A step has come to a stage."""
        self.listener.stage(self.step.name, stage)
