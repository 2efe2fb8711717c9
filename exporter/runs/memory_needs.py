"""What each step of a run needs, by measurement, and what is said where that was not there."""

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
PERHAPS = "It was killed from outside, perhaps because memory ran out"


Table = Callable[[str], Need]  # by target or step


def exports(target: str) -> Need:
    """Of an export."""
    return targets.facts(target).export_need


def sessions(target: str) -> Need:
    """Of a session; "" and eager stand for what is compiled or run without an artifact."""
    return targets.facts(target).session_need


def others(step: str) -> Need:
    """Of a step that belongs to no target."""
    return Need(0.3, 1.5 * GB) if step == GOLDEN else Need(1.0, 1.0 * GB)


LARGE = 1 * GB  # weights from which on a run takes a share of the machine, whatever is free
SHARE = Need(2.5, 2 * GB)  # beyond the weights themselves, which all share


def share(there: int, weights: int) -> int:
    """What steps may take side by side of the bytes that are there, for a model whose weights take `weights` bytes."""
    return there if weights < LARGE else min(there, SHARE.of(weights))


@dataclass(frozen=True)
class Shortage:
    """A step that failed as one does for want of memory.

    It was expected to need so many bytes (0 where nobody knows), and so many were there. `limit` is the user's, 0 for
    none; `killed` says that the kernel ended a process for want of memory meanwhile.
    """

    step: str
    needed: int
    there: int
    limit: int = 0
    killed: bool = False

    @property
    def sure(self) -> bool:
        """Whether memory is known to be why, also where the process was ended from outside without a word."""
        return self.killed or self.needed > min(self.there, self.limit or self.there)

    def describe(self) -> str:
        """Needed and there, in words."""
        limit = f", and --memory-limit is {_gb(self.limit)}" if self.limit else ""
        if not self.needed:
            return f"the memory that {self.step} needs is unknown, {_gb(self.there)} were free{limit}"
        return f"{self.step} needs about {_gb(self.needed)}, {_gb(self.there)} were free{limit}"

    def remedies(self, alone: str = "", smaller: Mapping[str, int] | None = None) -> str:
        """What works: a higher limit, a run of its own, another precision (`--targets` to bytes), another machine."""
        if not self.needed:
            higher = "raise --memory-limit, " if self.limit else ""
            return f"{higher}free some memory, raise the container's memory limit, or use a larger machine"
        found = []
        if self.limit and self.limit < self.needed <= self.there:
            found.append(f"give --memory-limit {self.needed / GB:.1f}")
        if alone and self.needed <= self.there:
            found.append(f"export it alone (--targets {alone})")
        bound = min(self.there, self.limit or self.there)
        fitting = {name: needed for name, needed in (smaller or {}).items() if needed <= bound}
        found += [f"take a smaller precision (--targets {name} needs about {_gb(n)})" for name, n in fitting.items()]
        machine = f"use a machine with {_gb(round(1.1 * self.needed))} free"
        return ", or ".join([*found, machine] if not found or self.needed > self.there else found)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


@dataclass
class MemoryPlan:
    """What the steps for one model are expected to take, and what was free when each began.

    `limit` is what the user allows a job, in bytes, or 0. `alone` says that a run of fewer variants is a remedy.
    """

    weights: int = 0
    limit: int = 0
    alone: bool = False
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)  # free, and the kernel's kills till then

    def begin(self, key: str) -> None:
        """A step begins: the export or the sessions of a variant, by its name, or another."""
        self._before[key] = memory.free(), memory.kills()

    def share(self, table: Table, step: str) -> int:
        """Bytes that a step is expected to take, and no more than the user allows it."""
        needed = need(table, step, self.weights)
        return min(needed, self.limit or needed)

    def keeps(self, record: VariantRecord) -> bool:
        """Whether a variant's sessions can stay open beside those that are, for they are timed in turn."""
        if self.weights < LARGE:
            return True
        count = 2 if targets.is_native(record.target) else 1
        return count * need(sessions, record.target, self.weights) <= memory.free()

    def explain(self, record: VariantRecord) -> VariantRecord:
        """A row that failed as one does for want of memory, with what was needed, what was there, and what works."""
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
        """As `explain`, for what ended the golden."""
        cause = causes.of(error)
        if cause is None or cause.name not in OUT_OF_MEMORY:
            return error
        found = self._shortage("the golden", need(others, GOLDEN, self.weights), GOLDEN)
        said = cause.sentence if found.sure or cause.name != causes.KILLED else PERHAPS
        return JobError(f"{said}: {found.describe()}: {error}", found.remedies(), getattr(error, "log", ""))

    def _shortage(self, step: str, needed: int, key: str) -> Shortage:
        there, kills = self._before.get(key) or (memory.free(), memory.kills())
        return Shortage(step, needed, there, self.limit, memory.kills() > kills)

    def _smaller(self, record: VariantRecord, table: Table) -> dict[str, int]:
        """Half precisions of the same target, and what the step needs in them."""
        if record.target == EAGER or record.stage == "prepare":
            return {}
        (variant,) = targets.parse(record.name)
        halves = [p for p in ("bf16", "fp16") if p in targets.get(record.target).precisions]
        needed = need(table, record.target, self.weights // 2)
        return {variant._replace(precision=p).name: needed for p in halves[:1] if variant.precision == FP32}


def need(table: Table, step: str, weights: int) -> int:
    """Bytes that a step is expected to take for a model whose weights take `weights` bytes."""
    return table(step).of(weights)
