"""Which process each job of a run is forked from, and when: where memory is short, in order instead of side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from exporter import causes, memory, targets
from exporter.errors import ExporterError, JobError
from exporter.isolate import Child, Holder, Zygote
from exporter.job import Job, Prepared
from exporter.records import EAGER, FP32, VariantRecord

GOLDEN = "golden"


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
        self._before: dict[str, tuple[int, int]] = {}  # free when a step began, and the kernel's kills till then
        self._weights = 0
        self.room = memory.Room(memory.UNLIMITED)

    def load(self, timeout: float) -> None:
        """Load the model for all. Raises what loading it raised."""
        if self.job.options.device != "cpu":
            return
        child = self._zygote.spawn("load", "exporter.holding:hold", {"job": self.job}, self.log)
        if child.expect("loaded", timeout):
            self._holder = Holder(child, self._zygote.environment)
        else:
            child.wait(timeout)

    def prepare(self, arguments: dict[str, object]) -> Child:
        """Start the job that prepares, and then makes the golden."""
        return self.model.spawn("prepare", "exporter.steps:prepare", arguments, self.log)

    @property
    def model(self) -> Zygote:
        """What jobs are forked from that need the model."""
        return self._holder or self._zygote

    def settle(self, prepared: Prepared) -> None:
        """Plan with what is known now: the model is loaded and captured, and what is free now is there for the rest."""
        self._weights = prepared.weight_bytes
        self.room = memory.Room(memory.share(memory.free(), self._weights))
        for user in [user for user in self._users if isinstance(user, targets.Variant)]:
            if not _needs_model(user, prepared):
                self._leave(user)

    def in_order(self, variants: Sequence[targets.Variant]) -> list[targets.Variant]:
        """What takes longest first; where not all fit beside each other, what shares the loaded model before that."""
        longest = sorted(variants, key=cost, reverse=True)
        needs = [self._share(memory.EXPORTS, v.target) for v in self._exports]
        if sum(needs) + self._share(memory.OTHERS, GOLDEN) <= self.room.size:
            return longest
        return sorted(longest, key=lambda variant: variant not in self._users)

    def need(self, table: dict[str, memory.Need], step: str, weights: int) -> int:
        """Bytes that a step is expected to take."""
        return table.get(step, table[""]).of(weights)

    def _share(self, table: dict[str, memory.Need], step: str) -> int:
        """As `need`, and no more than the user allows a job."""
        needed = self.need(table, step, self._weights)
        return min(needed, self.job.options.memory_limit or needed)

    @contextmanager
    def golden(self) -> Iterator[int]:
        """The golden's turn; gives how many bytes of float64 weights it may hold."""
        fixed = self._share(memory.OTHERS, GOLDEN)
        needs = [self._share(memory.EXPORTS, v.target) for v in self._exports]
        beside = max((need for need in needs if need + fixed <= self.room.size), default=0)
        widened = min(max(self.room.size - beside - fixed, 0), 2 * self._weights)
        try:
            with self.room.take(fixed + widened):
                self._begin(GOLDEN)
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
            with self.room.take(self._share(memory.EXPORTS, variant.target)):
                self._begin(variant.name)
                yield self.model if shares else self._zygote
        finally:
            self._leave(variant)

    @contextmanager
    def check(self, variant: targets.Variant) -> Iterator[None]:
        """The turn of a variant's sessions, which follow each other."""
        with self.room.take(self._share(memory.SESSIONS, "" if targets.is_live(variant) else variant.target)):
            self._begin(variant.name)
            yield

    def keeps(self, record: VariantRecord) -> bool:
        """Whether a variant's sessions can stay open beside those that are, for they are timed in turn."""
        if self._weights < memory.LARGE:
            return True
        sessions = 2 if targets.get(record.target).native else 1
        return sessions * self.need(memory.SESSIONS, record.target, self._weights) <= memory.free()

    def explain(self, record: VariantRecord) -> VariantRecord:
        """A row that failed as one does for want of memory, with what was needed, what was there, and what works."""
        cause = causes.find(record.reason)
        if record.status != "failed" or cause is None or cause.name != causes.OUT_OF_MEMORY:
            return record
        table, what = (
            (memory.EXPORTS, "the export to ") if record.stage == "export" else (memory.SESSIONS, "a session of ")
        )
        found = self._shortage(f"{what}{record.name}", self.need(table, record.target, self._weights), record.name)
        raw = causes.shorten(record.reason.removeprefix(f"{cause.sentence}: "))
        if not found.sure and causes.ENDED in record.reason:
            reason = f"It was ended from outside, perhaps for want of memory: {found.describe()}: {raw}"
            remedy = f"if nobody ended it on purpose: {found.remedies(self._alone(record))}"
        else:
            reason = f"{cause.sentence}: {found.describe()}: {raw}"
            remedy = found.remedies(self._alone(record), self._smaller(record, table))
        return replace(record, reason=reason, remedy=remedy)

    def explain_golden(self, error: ExporterError) -> ExporterError:
        """As `explain`, for what ended the golden."""
        cause = causes.find(str(error))
        if cause is None or cause.name != causes.OUT_OF_MEMORY:
            return error
        needed = self.need(memory.OTHERS, GOLDEN, self._weights)
        found = self._shortage("the golden", needed, GOLDEN)
        sure = found.sure or causes.ENDED not in str(error)
        said = cause.sentence if sure else "It was ended from outside, perhaps for want of memory"
        return JobError(f"{said}: {found.describe()}: {error}", found.remedies(), getattr(error, "log", ""))

    def _shortage(self, step: str, needed: int, key: str) -> memory.Shortage:
        there, kills = self._before.get(key, (memory.free(), memory.kills()))
        return memory.Shortage(step, needed, there, self.job.options.memory_limit, memory.kills() > kills)

    def _alone(self, record: VariantRecord) -> str:
        return record.name if len(self._exports) > 1 and record.target != EAGER else ""

    def _smaller(self, record: VariantRecord, table: dict[str, memory.Need]) -> dict[str, int]:
        """Half precisions of the same target, and what the step needs in them."""
        if record.target == EAGER:
            return {}
        (variant,) = targets.parse(record.name)
        halves = [p for p in ("bf16", "fp16") if p in targets.get(record.target).precisions]
        needed = self.need(table, record.target, self._weights // 2)
        return {variant._replace(precision=p).name: needed for p in halves[:1] if variant.precision == FP32}

    def _begin(self, key: str) -> None:
        self._before[key] = memory.free(), memory.kills()

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
        self.room.grow(self._weights)


def cost(variant: targets.Variant) -> int:
    """How long its export takes, against others'; nothing for what is not exported."""
    return 0 if targets.is_live(variant) else targets.get(variant.target).cost


def _needs_model(variant: targets.Variant, prepared: Prepared) -> bool:
    """Whether its export starts from the module, and not from the exported program alone."""
    if targets.is_live(variant):
        return False
    route = targets.get(variant.target)
    by_itself: bool = getattr(route, "needs_module", not route.needs_program)
    return by_itself or variant.precision != FP32 or bool(prepared.ops)
