"""Which process each job of a run is forked from, and when: where memory is short, in order instead of side by side."""

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
    """The jobs of one run, each when its turn comes.

    On the CPU, those that need the model are forked from a process that has loaded it, and that ends once nobody needs
    it any more. Safe to use from several threads.
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
        """Load the model for all. Raises what loading it raised."""
        self.plan.begin(memory_needs.LOAD)
        if self.job.options.device != "cpu":
            return
        child = self._zygote.spawn("load", "exporter.workers.model_holder:hold", {"job": self.job}, self.log)
        if child.expect("loaded", timeout):
            self._holder = Holder(child, self._zygote.environment)
        else:
            child.wait(timeout)

    def prepare(self, arguments: dict[str, object]) -> Child:
        """Start the job that prepares, and then makes the golden."""
        return self.model.spawn("making the golden", "exporter.workers.tasks:prepare", arguments, self.log)

    @property
    def model(self) -> Zygote:
        """What jobs are forked from that need the model."""
        return self._holder or self._zygote

    def settle(self, prepared: Prepared) -> None:
        """Plan with what is known once the model is loaded and captured: what is free now is there for the rest."""
        self.plan.weights = prepared.weight_bytes
        self.room = memory.Room(memory_needs.share(memory.free(), self.plan.weights))
        for user in [user for user in self._users if isinstance(user, targets.Variant)]:
            if not _needs_model(user, prepared):
                self._leave(user)

    def in_order(self, variants: Sequence[targets.Variant]) -> list[targets.Variant]:
        """What takes longest first; where not all fit beside each other, what shares the loaded model before that."""
        longest = sorted(variants, key=cost, reverse=True)
        exports = [self.plan.share(memory_needs.exports, v.target) for v in self._exports]
        if sum(exports) + self.plan.share(memory_needs.others, GOLDEN) <= self.room.size:
            return longest
        return sorted(longest, key=lambda variant: variant not in self._users)

    @contextmanager
    def golden(self) -> Iterator[int]:
        """The golden's turn; gives how many bytes of float64 weights it may hold."""
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
        """A variant's turn to be exported; gives what its job is forked from."""
        if targets.is_live(variant):  # nothing is made
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
        """The turn of a variant's sessions, which follow each other."""
        with self.room.take(self.plan.share(memory_needs.sessions, "" if targets.is_live(variant) else variant.target)):
            self.plan.begin(variant.name)
            yield

    def close(self) -> None:
        """End the process that holds the model, and let nobody wait any more."""
        self.room.close()
        if self._holder is not None:
            self._holder.close()

    def _leave(self, user: targets.Variant | str) -> None:
        """Who was the last to need the model gives its memory back."""
        with self._lock:
            self._users.discard(user)
            if self._users or self._holder is None:
                return
            holder, self._holder = self._holder, None
        holder.close()
        self.room.grow(self.plan.weights)


def cost(variant: targets.Variant) -> int:
    """How long its export takes, against others'; nothing for what is not exported."""
    return 0 if targets.is_live(variant) else targets.facts(variant.target).cost


def _needs_model(variant: targets.Variant, prepared: Prepared) -> bool:
    """Whether its export starts from the module, and not from the exported program alone."""
    if targets.is_live(variant):
        return False
    by_itself = targets.facts(variant.target).needs_module
    if by_itself is None:
        by_itself = not targets.get(variant.target).needs_program
    return by_itself or variant.precision != FP32 or bool(prepared.ops)
