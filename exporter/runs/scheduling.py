"""When each job of a run starts, and the process it is forked from. If memory is short, jobs run one after another."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from exporter import targets
from exporter.core import memory
from exporter.core.contract_records import FP32
from exporter.runs import memory_needs
from exporter.runs.memory_needs import GOLDEN, MemoryPlan
from exporter.workers.children import Child, Holder, Zygote
from exporter.workers.messages import Job, Prepared


class Turns:
    """Schedules the jobs of one run.

    On the CPU, jobs that need the model are forked from a process that has loaded it; that process ends once no job
    needs it. Safe to use from several threads.
    """

    def __init__(self, zygote: Zygote, job: Job, variants: Sequence[targets.Variant], log: Path) -> None:
        self.job, self.log = job, log
        self._zygote = zygote
        self._holder: Holder | None = None
        self._exports = [variant for variant in variants if not targets.is_live(variant)]
        self._users: set[targets.Variant | str] = {*variants, GOLDEN}
        self._lock = threading.Lock()
        self.plan = MemoryPlan(0, job.options.memory_limit, len(self._exports) > 1)
        self.room = memory.Room(memory.UNLIMITED)

    def load(self, timeout: float) -> None:
        """Load the model for all jobs. Raises the error that loading it raised."""
        self.plan.begin(memory_needs.LOAD)
        if self.job.options.device != "cpu":
            return
        child = self._zygote.spawn("load", "exporter.workers.model_holder:hold", {"job": self.job}, self.log)
        if child.expect("loaded", timeout):
            self._holder = Holder(child, self._zygote.environment)
        else:
            child.wait(timeout)

    def prepare(self, arguments: dict[str, object]) -> Child:
        """Start the job that prepares the run and then makes the golden."""
        return self.model.spawn("making the golden", "exporter.workers.tasks:prepare", arguments, self.log)

    @property
    def model(self) -> Zygote:
        """Return the process to fork jobs from that need the model."""
        return self._holder or self._zygote

    def settle(self, prepared: Prepared) -> None:
        """Plan the remaining jobs once the model is loaded and captured: they share the memory that is free now."""
        self.plan.weights = prepared.weight_bytes
        self.room = memory.Room(memory_needs.share(memory.free(), self.plan.weights))
        for user in [user for user in self._users if isinstance(user, targets.Variant)]:
            if not _needs_model(user, prepared):
                self._leave(user)

    def in_order(self, variants: Sequence[targets.Variant]) -> list[targets.Variant]:
        """Sort by cost, highest first. If not all fit in memory together, put those that need the model first."""
        longest = sorted(variants, key=cost, reverse=True)
        exports = [self.plan.share(memory_needs.exports, v.target) for v in self._exports]
        if sum(exports) + self.plan.share(memory_needs.others, GOLDEN) <= self.room.size:
            return longest
        return sorted(longest, key=lambda variant: variant not in self._users)

    @contextmanager
    def golden(self) -> Iterator[int]:
        """Wait for the golden's turn; yield how many bytes of float64 weights it may hold."""
        fixed = self.plan.share(memory_needs.others, GOLDEN)
        exports = [self.plan.share(memory_needs.exports, v.target) for v in self._exports]
        beside = max((need for need in exports if need + fixed <= self.room.size), default=0)
        widened = min(max(self.room.size - beside - fixed, 0), 2 * self.plan.weights)
        try:
            with self.room.take(fixed + widened):
                self.plan.begin(GOLDEN)
                yield widened
        finally:
            self._leave(GOLDEN)

    @contextmanager
    def export(self, variant: targets.Variant) -> Iterator[Zygote]:
        """Wait for a variant's turn to be exported; yield the process to fork its job from."""
        if targets.is_live(variant):  # nothing to export
            self._leave(variant)
            yield self._zygote
            return
        shares = variant in self._users
        try:
            with self.room.take(self.plan.share(memory_needs.exports, variant.target)):
                self.plan.begin(variant.name)
                yield self.model if shares else self._zygote
        finally:
            self._leave(variant)

    @contextmanager
    def check(self, variant: targets.Variant) -> Iterator[None]:
        """Wait for the turn of a variant's sessions, which run one after another."""
        with self.room.take(self.plan.share(memory_needs.sessions, "" if targets.is_live(variant) else variant.target)):
            self.plan.begin(variant.name)
            yield

    def close(self) -> None:
        """End the process that holds the model, and release every waiting thread."""
        self.room.close()
        if self._holder is not None:
            self._holder.close()

    def _leave(self, user: targets.Variant | str) -> None:
        """Remove a user of the model. After the last one, end the process that holds it and free its memory."""
        with self._lock:
            self._users.discard(user)
            if self._users or self._holder is None:
                return
            holder, self._holder = self._holder, None
        holder.close()
        self.room.grow(self.plan.weights)


def cost(variant: targets.Variant) -> int:
    """Return the relative duration of a variant's export; 0 if it is compiled just in time."""
    return 0 if targets.is_live(variant) else targets.facts(variant.target).cost


def _needs_model(variant: targets.Variant, prepared: Prepared) -> bool:
    """Return whether a variant's export needs the module, not only the exported program."""
    if targets.is_live(variant):
        return False
    needed = targets.facts(variant.target).needs_module
    if needed is None:
        needed = not targets.get(variant.target).needs_program
    return needed or variant.precision != FP32 or bool(prepared.ops)
