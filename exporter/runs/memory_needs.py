"""The measured memory needs of each step of a run, and the messages if memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from exporter import targets
from exporter.core import causes, memory
from exporter.core.contract_records import FP32
from exporter.core.errors import ExporterError, JobError
from exporter.core.records import EAGER, VariantRecord
from exporter.targets import GB, Need

GOLDEN, LOAD = "golden", "load"
OUT_OF_MEMORY = (causes.OUT_OF_MEMORY, causes.KILLED)
RAISE = "raise or remove `ulimit -v`"
PERHAPS = "It was killed from outside, perhaps because memory ran out"


Table = Callable[[str], Need]  # by target or step


def exports(target: str) -> Need:
    """Return the need of an export."""
    return targets.facts(target).export_need


def sessions(target: str) -> Need:
    """Return the need of a session; "" and eager stand for a session without an artifact."""
    return targets.facts(target).session_need


def others(step: str) -> Need:
    """Return the need of a step that belongs to no target."""
    return Need(0.3, 1.5 * GB) if step == GOLDEN else Need(1.0, 1.0 * GB)


LARGE = 1 * GB  # from this size of weights on, a run is limited to a share of the free memory
SHARE = Need(2.5, 2 * GB)  # in addition to the weights, which all steps share


def share(free: int, weights: int) -> int:
    """Return how many of `free` bytes concurrent steps may take, for a model with `weights` bytes of weights."""
    return free if weights < LARGE else min(free, SHARE.of(weights))


@dataclass(frozen=True)
class Shortage:
    """A step that failed as if memory had run out.

    It was expected to need `needed` bytes (0 if unknown), and `free` bytes were free. `limit` is the user's, 0 for
    none; `killed` says that the kernel's OOM killer ended a process during the step. `address_space` is the limit on
    the address space of a process, and `container` that of the container or control group if it had less left than the
    machine, 0 for none.
    """

    step: str
    needed: int
    free: int
    limit: int = 0
    killed: bool = False
    address_space: int = 0
    container: int = 0

    @property
    def sure(self) -> bool:
        """Whether memory is known to be the cause, even if the process was killed from outside without a message."""
        return self.killed or self.needed > min(self.free, self.limit or self.free)

    def describe(self) -> str:
        """Describe the memory that was needed and the memory that was free."""
        limit = f", and --memory-limit is {_gb(self.limit)}" if self.limit else ""
        if self.address_space:
            limit += f", and `ulimit -v` limits the address space of a process to {_gb(self.address_space)}"
        if self.container:
            limit += f", and the container's memory limit is {_gb(self.container)}"
        if not self.needed:
            return f"the memory that {self.step} needs is unknown; {_gb(self.free)} was free{limit}"
        return f"{self.step} needs about {_gb(self.needed)}; {_gb(self.free)} was free{limit}"

    def remedies(self, alone: str = "", smaller: Mapping[str, int] | None = None) -> str:
        """Return what would help: a higher limit, a separate run, another precision, or another machine.

        `alone` is the variant to export separately, "" if that does not help; `smaller` maps a `--targets` argument to
        the bytes that it needs.
        """
        if not self.needed:
            higher = "raise --memory-limit, " if self.limit else ""
            higher += f"{RAISE}, " if self.address_space else ""
            now = f" (now {_gb(self.container)})" if self.container else ""
            return f"{higher}free some memory, raise the container's memory limit{now}, or use a larger machine"
        found = [RAISE] if self.address_space else []
        if self.limit and self.limit < self.needed <= self.free:
            found.append(f"pass --memory-limit {self.needed / GB:.1f}")
        if alone and self.needed <= self.free:
            found.append(f"export it alone (--targets {alone})")
        bound = min(self.free, self.limit or self.free)
        fitting = {name: needed for name, needed in (smaller or {}).items() if needed <= bound}
        found += [f"use a smaller precision (--targets {name} needs about {_gb(n)})" for name, n in fitting.items()]
        if self.container and (self.killed or self.needed > self.free):
            used = max(0, self.container - self.free)
            wanted = max(self.container, used + round(1.1 * self.needed))
            more = f"from {_gb(self.container)} to more than {_gb(wanted)}" if wanted > self.container else ""
            found.append(f"raise the container's memory limit {more or f'(now {_gb(self.container)})'}")
        machine = f"use a machine with {_gb(round(1.1 * self.needed))} free"
        return ", or ".join([*found, machine] if not found or self.needed > self.free else found)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


@dataclass
class MemoryPlan:
    """The memory that each step for one model is expected to need, and the free memory when each began.

    `limit` is the user's limit for a job in bytes, or 0. `alone` says that a run of fewer variants is a remedy.
    """

    weights: int = 0
    limit: int = 0
    alone: bool = False
    _before: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def begin(self, key: str) -> None:
        """Record the free memory as a step begins. `key` is a variant's name, GOLDEN or LOAD."""
        self._before[key] = self._now()

    def _now(self) -> tuple[int, int, int]:
        """Return the free bytes, how many processes the kernel has ended so far, and the container's limit."""
        return memory.free(), memory.kills(), memory.container_limit()

    def share(self, table: Table, step: str) -> int:
        """Return the bytes that a step is expected to need, at most the user's limit."""
        needed = need(table, step, self.weights)
        return min(needed, self.limit or needed)

    def keeps(self, record: VariantRecord) -> bool:
        """Return whether memory allows a variant's sessions to stay open with the others until they are timed."""
        if self.weights < LARGE:
            return True
        count = 2 if targets.is_native(record.target) else 1
        return count * need(sessions, record.target, self.weights) <= memory.free()

    def explain(self, record: VariantRecord) -> VariantRecord:
        """Return the record; if it ran out of memory, with the needed and free memory and a remedy in its message."""
        if record.status != "failed" or record.cause not in OUT_OF_MEMORY:
            return record
        sentence = causes.named(record.cause).sentence
        table: Table
        if record.stage == "prepare":
            table, step, needed, key = others, "loading and capturing the model", 0, LOAD
        else:
            table, what = (exports, "the export to") if record.stage == "export" else (sessions, "a session of")
            step, needed, key = f"{what} {record.name}", need(table, record.target, self.weights), record.name
        found = self._shortage(step, needed, key)
        raw = causes.shorten(record.reason.removeprefix(f"{sentence}: "))
        alone = record.name if self.alone and needed and record.target != EAGER else ""
        if not found.sure and record.cause == causes.KILLED:
            reason = f"{PERHAPS}: {found.describe()}: {raw}"
            remedy = f"unless it was killed on purpose: {found.remedies(alone)}"
        else:
            reason = f"{sentence}: {found.describe()}: {raw}"
            remedy = found.remedies(alone, self._smaller(record, table))
        return replace(record, reason=reason, remedy=remedy)

    def explain_golden(self, error: ExporterError) -> ExporterError:
        """Return the golden's error, explained as `explain` does."""
        cause = causes.of(error)
        if cause is None or cause.name not in OUT_OF_MEMORY:
            return error
        found = self._shortage("the golden", need(others, GOLDEN, self.weights), GOLDEN)
        sentence = cause.sentence if found.sure or cause.name != causes.KILLED else PERHAPS
        return JobError(f"{sentence}: {found.describe()}: {error}", found.remedies(), getattr(error, "log", ""))

    def _shortage(self, step: str, needed: int, key: str) -> Shortage:
        free, kills, container = self._before.get(key) or self._now()
        killed = memory.kills() > kills
        return Shortage(step, needed, free, self.limit, killed, memory.address_space(), container)

    def _smaller(self, record: VariantRecord, table: Table) -> dict[str, int]:
        """Return a half precision of the same variant, and the bytes that the step needs in it."""
        if record.target == EAGER or record.stage == "prepare":
            return {}
        (variant,) = targets.parse(record.name)
        halves = [p for p in ("bf16", "fp16") if p in targets.get(record.target).precisions]
        needed = need(table, record.target, self.weights // 2)
        return {variant._replace(precision=p).name: needed for p in halves[:1] if variant.precision == FP32}


def need(table: Table, step: str, weights: int) -> int:
    """Return the bytes that a step is expected to need for a model with `weights` bytes of weights."""
    return table(step).of(weights)
