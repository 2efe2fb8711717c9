"""Attributes the time of a variant's steps to the lines of the model's source.

A step that computes several nodes is divided among their lines by the time that each node's work takes at the machine's
peaks.

This file is long because finding a step's lines, dividing its time and naming what limits a line use the same work.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from exporter.core import precisions
from exporter.core.profile_records import Line, LineTime, Origin, Peaks, Profiled, Step, Steps, Work, aligned
from exporter.core.records import EAGER
from exporter.core.timing_records import MachineLoad

Key = tuple[str, str]  # a module's path and a place
Turn = tuple[str, str | None]  # a place and an operator
MOST_US = 5.0  # that the profiler takes for an event
LEAST_S = 1e-7  # of any operator, so that operators without work count equally
NEAR = 0.6  # of a peak
LEAST_SHARE = 0.05  # of the latency: less is not worth a change
APART = 2.0  # a module that takes this multiple of the median of its like has a line of its own
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
LOWER = ("bf16", "int8")  # precisions in which most devices compute faster than in float32
BYTES = {"bf16": 0.5, "fp16": 0.5, "int8": 0.25}  # of a number, as a fraction of float32's


@dataclass
class Model:
    """The model's lines, by module and place, with the work of each."""

    eager: Sequence[Work]
    nodes: Sequence[Work]
    peaks: Peaks

    def __post_init__(self) -> None:
        self._places = {one.place for one in self.eager}
        self._full: dict[str, set[str]] = {}
        for place in self._places:
            self._full.setdefault(_tail(place), set()).add(place)
        self.by_node = {one.name: one for one in self.nodes}
        self.work: dict[Key, list[Work]] = {}
        for one in self.eager:
            self.work.setdefault(self.key(one.module, one.place), []).append(one)
        for one in self.nodes:
            key = self.key(one.module, one.place)
            if key not in self.work:  # a line that runs only in the exported program
                self.work[key] = []
        # The modules of each place and operator in their order, and of each place with any operator (None).
        self._at: dict[Turn, list[str]] = {}
        for one in self.nodes or self.eager:
            for operator in (_base(one.operator), None):
                self._at.setdefault((self.place(one.place), operator), []).append(one.module)

    def place(self, place: str, module: str | None = None) -> str:
        """Return a place as eager names it; artifacts keep only the names of files outside packages.

        If several files have that name, the one in which the module has work counts.
        """
        known = {place} if place in self._places else self._full.get(_tail(place), set())
        if len(known) > 1:
            known = {one for one in known if (module, one) in self.work}
        return next(iter(known)) if len(known) == 1 else place

    def key(self, module: str, place: str) -> Key:
        """Return the key of a line."""
        return module, self.place(place, module)

    def cost_s(self, works: Iterable[Work]) -> float:
        """Return the time that work takes at the machine's peaks, in seconds."""
        rate = self.peaks.flop_per_s.get("fp32", 1e12)
        spent = (max((one.flop or 0) / rate, one.bytes / self.peaks.bytes_per_s, LEAST_S) for one in works)
        return max(sum(spent), LEAST_S)

    def resolved(self, found: Steps) -> Steps:
        """Return the steps with the modules and the lines to which their time is attributed."""
        keys = self.keys_of(found.steps)
        made = (
            replace(step, origins=tuple(Origin(*key) for key, _ in own))
            for step, own in zip(found.steps, keys, strict=True)
        )
        return replace(found, steps=tuple(made))

    def keys_of(self, steps: Sequence[Step]) -> list[list[tuple[Key, float]]]:
        """Return the lines of each step with their parts of its time.

        A step that knows its place but not its module gets one by its turn at that place: a loop over layers visits
        them in the same order in every variant.
        """
        steps = self._with_origins(steps)
        turns = Counter(turn for step in steps for turn in self._turns(step))
        used: Counter[Turn] = Counter()
        found = []
        for step in steps:
            parts: dict[Key, float] = {}
            for one in step.origins:
                key, cost = self._resolve(one, step, used, turns)
                if key[1]:
                    parts[key] = parts.get(key, 0.0) + cost
            used.update(self._turns(step))
            total = sum(parts.values())
            found.append([(key, cost / total) for key, cost in parts.items()])
        return found

    def _with_origins(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Return the steps with origins for those without any: the nodes of the same operators, in their order."""
        named = self.nodes or self.eager
        at = aligned([_base(one.operator) for one in named], [_base(step.name) for step in steps])
        return [
            step
            if index is None or any(one.place or one.node for one in step.origins)
            else replace(step, origins=(Origin(named[index].module, named[index].place, named[index].name),))
            for step, index in zip(steps, at, strict=True)
        ]

    def _is_bare(self, origin: Origin) -> bool:
        return bool(origin.place) and origin.module is None and not origin.node

    def _turns(self, step: Step) -> set[Turn]:
        """Return the places at which a step takes its turn, with its operator if that is known there."""
        return {self._turn(one, step) for one in step.origins if self._is_bare(one)}

    def _turn(self, origin: Origin, step: Step) -> Turn:
        turn = self.place(origin.place), _base(step.name)
        return turn if turn in self._at else (turn[0], None)

    def _resolve(self, origin: Origin, step: Step, used: Counter[Turn], turns: Counter[Turn]) -> tuple[Key, float]:
        work = self.by_node.get(origin.node)
        if work and (
            not origin.place or self.place(origin.place, origin.module) == self.place(work.place, work.module)
        ):
            return self.key(work.module, work.place), self.cost_s([work])
        turn = self._turn(origin, step)
        if self._is_bare(origin) and (modules := self._at.get(turn)):
            key = modules[used[turn] * len(modules) // turns[turn]], turn[0]
        else:  # the node has another name here, if it has one: converters number nodes again
            key = self.key(origin.module or "", origin.place)
        if origin.bytes:
            return key, max(origin.bytes / self.peaks.bytes_per_s, LEAST_S)
        return key, self.cost_s(self.work.get(key, ()))


def _base(operator: str) -> str:
    """Return an operator's name without its namespace and overload: `relu` for aten::relu and aten.relu.default."""
    if "::" in operator:
        return operator.rpartition("::")[2].partition(".")[0]
    parts = operator.split(".")
    return parts[1] if len(parts) == 3 else operator


def _tail(place: str) -> str:
    return place.rpartition("/")[2]


@dataclass
class Spent:
    """The time of one variant by line, in milliseconds: in all, of copies and of the backward pass.

    `calls` is the number of its steps there.
    """

    latency_ms: float
    ms: dict[Key, float] = field(default_factory=dict)
    copy_ms: dict[Key, float] = field(default_factory=dict)
    backward_ms: dict[Key, float] = field(default_factory=dict)
    calls: dict[Key, int] = field(default_factory=dict)
    elsewhere_ms: float = 0.0
    outside_ms: float = 0.0
    slowed: float = 1.0


def spend(model: Model, found: Steps, latency_ms: float) -> Spent:
    """Attribute a call's steps, without what the profiler added to them.

    What remains of the call with the profiler is compared with the latency without it, and every step is scaled by
    their ratio: the machine is not equally fast all the time. On a GPU the profiler slows down only the host, so the
    times of kernels are kept, unless they exceed the latency.
    """
    latency_us = latency_ms * 1000
    events = sum(step.events for step in found.steps)
    each_us = min(max(found.duration_us - latency_us, 0.0) / events, MOST_US) if events else 0.0
    on_gpu = any(step.device_us is not None for step in found.steps)
    times = [
        step.time_us if on_gpu else max(step.duration_us - each_us * (step.events - 1), step.duration_us / 2)
        for step in found.steps
    ]
    alone_us = max(found.duration_us - each_us * events, sum(times))
    scale = latency_us / alone_us if alone_us and (not on_gpu or sum(times) > latency_us) else 1.0
    spent = Spent(latency_ms, slowed=found.duration_us / latency_us if latency_us else 1.0)
    for step, took_us, keys in zip(found.steps, times, model.keys_of(found.steps), strict=True):
        ms = took_us * scale / 1000
        copied = ms * min(step.copy_us / step.time_us, 1.0) if step.time_us else 0.0
        if not keys:
            spent.elsewhere_ms += ms
        for key, part in keys:
            spent.ms[key] = spent.ms.get(key, 0.0) + part * ms
            spent.copy_ms[key] = spent.copy_ms.get(key, 0.0) + part * copied
            spent.backward_ms[key] = spent.backward_ms.get(key, 0.0) + part * ms * step.backward
            spent.calls[key] = spent.calls.get(key, 0) + 1
    spent.outside_ms = latency_ms - sum(times) * scale / 1000
    return spent


def lines(model: Model, spent: Sequence[Spent]) -> list[tuple[Line, list[Key]]]:
    """Return the model's lines. Modules that differ only in numbers share one, unless one takes much longer."""
    keys = dict.fromkeys((*model.work, *(key for one in spent for key in one.ms)))
    alike: dict[Key, list[Key]] = {}
    for key in keys:
        alike.setdefault((_NUMBER.sub("*", key[0]), key[1]), []).append(key)
    found = []
    for (pattern, place), members in alike.items():
        own = [key for key in members if len(members) > 1 and _stands_out(key, members, spent)]
        rest = [key for key in members if key not in own]
        for name, some in (
            (pattern if len(rest) > 1 else (rest or [("", "")])[0][0], rest),
            *((key[0], [key]) for key in own),
        ):
            if some:
                found.append((_line(model, name, place, some), some))
    return found


def _stands_out(key: Key, members: Sequence[Key], spent: Sequence[Spent]) -> bool:
    for one in spent:
        usual = statistics.median(one.ms.get(member, 0.0) for member in members)
        if one.ms.get(key, 0.0) > max(APART * usual, 0.01 * one.latency_ms):
            return True
    return False


def _line(model: Model, module: str, place: str, keys: Sequence[Key]) -> Line:
    works = [work for key in keys for work in model.work.get(key, ())]
    known = [work.flop for work in works if work.flop is not None]
    operators = dict.fromkeys(work.operator.removeprefix("aten::") for work in works)
    flop = sum(known) if len(known) == len(works) else None
    return Line(module, place, "", tuple(operators), len(keys), flop, sum(work.bytes for work in works))


def times(found: Sequence[tuple[Line, list[Key]]], spent: Spent, peaks: Peaks, precision: str) -> tuple[LineTime, ...]:
    """Return the time of each line in a variant, the slowest first. Lines on which it spends none are left out."""
    rate = peaks.flop_per_s.get("fp32" if precision == "tf32" else precision)
    rows = []
    for index, (line, keys) in enumerate(found):
        ms = sum(spent.ms.get(key, 0.0) for key in keys)
        if ms <= 0:
            continue
        moved = line.bytes * BYTES.get(precision, 1.0)
        rows.append(
            LineTime(
                index,
                ms,
                ms / spent.latency_ms,
                sum(spent.calls.get(key, 0) for key in keys),
                sum(spent.copy_ms.get(key, 0.0) for key in keys),
                moved / (ms / 1000) / peaks.bytes_per_s if moved else None,
                line.flop / (ms / 1000) / rate if line.flop and rate else None,
                sum(spent.backward_ms.get(key, 0.0) for key in keys),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.ms))


def advice(
    lines: Sequence[Line],
    variants: Sequence[Profiled],
    baseline: str = EAGER,
    busy: MachineLoad | None = None,
    lower: Sequence[str] = LOWER,
) -> tuple[str, ...]:
    """Return which variant is fastest, where it wins, what it lacks kernels for, and what to try first with it.

    `baseline` is the name of the eager variant. That of a training step is another, and options of exports do not apply
    to it. `busy` is the other load on the machine if it was busy during the timings: intervals are widened by the share
    that was lost, as in the report, and what remains is in doubt.
    """
    ranked = sorted((one for one in variants if one.latency_ms), key=lambda one: one.latency_ms)
    if not ranked:
        return ()
    best, *others = ranked
    eager = [one for one in others[1:] if one.name == baseline]
    found = [_won(lines, best, other, busy) for other in (*others[:1], *eager)]
    if best.fallbacks:
        found.append(f"{best.name} has no kernel of its own for {', '.join(best.fallbacks[:3])}")
    doubt = " (in doubt, because the machine was busy)" if busy else ""
    return (
        *found,
        f"first to try, for {best.name}{doubt}: {_remedy(lines, best, others, lower if baseline == EAGER else None)}",
    )


def _won(lines: Sequence[Line], best: Profiled, other: Profiled, busy: MachineLoad | None = None) -> str:
    """Return by how much a variant wins, and the part of the difference that is largest."""
    won = other.latency_ms - best.latency_ms
    slack = busy.lost if busy else 0.0
    if other.ci95_ms[1] and best.ci95_ms[1] * (1 + slack) >= other.ci95_ms[0] * (1 - slack):
        widened = ", widened because the machine was busy," if slack else ""
        what = f"the 95% intervals of their latencies{widened} overlap"
        return f"{best.name} and {other.name} cannot be told apart: {what}"
    spent, before = ({time.line: time.ms for time in one.times} for one in (best, other))
    gains = {named(lines[line]): ms - spent.get(line, 0.0) for line, ms in before.items()}
    gains["operators that no line explains"] = other.elsewhere_ms - best.elsewhere_ms
    gains["the time between operators"] = other.outside_ms - best.outside_ms
    where = max(gains, key=lambda one: gains[one])
    if won <= 0 or gains[where] <= 0:
        return f"{best.name} is as fast as {other.name}"
    verdict = f"{best.name} {'seems to win' if busy else 'wins'} {won:.3g} ms over {other.name}"
    if gains[where] > won:
        return f"{verdict}: {gains[where]:.3g} ms in {where}, less what others cost"
    return f"{verdict}, {gains[where] / won:.0%} of it in {where}"


def named(line: Line) -> str:
    """Return a line's module and place."""
    return ", ".join(filter(None, (line.module, _tail(line.place))))


def _remedy(lines: Sequence[Line], best: Profiled, others: Sequence[Profiled], lower: Sequence[str] | None) -> str:
    """Return what may save most of a variant's time: a change of what limits it, or of its slowest line.

    `lower` are the precisions that an export can have, or None if the variants are not exported.
    """
    ways = [(best.outside_ms, _between(best, lower is not None)), (best.copy_ms, _copies(lines, best))]
    near = [one for one in best.times if max(one.compute or 0.0, one.bandwidth or 0.0) > NEAR]
    ways.append((sum(one.ms for one in near) / 2, _lower(lines, near, best, lower)))
    saved, way = max(ways)
    far = max((one for one in best.times if one not in near), key=_unexplained, default=None)
    if far and _unexplained(far) > max(saved, LEAST_SHARE * best.latency_ms):
        return _slow(lines, far, others)
    return way if saved > LEAST_SHARE * best.latency_ms else "nothing stands out"


def _between(best: Profiled, exported: bool) -> str:
    share = best.outside_ms / best.latency_ms
    other = ", the target compile" if exported and best.name.partition("@")[0] != "compile" else ""
    return f"{share:.0%} of its time is between operators: a larger batch{other}, or CUDA graphs on a GPU"


def _copies(lines: Sequence[Line], best: Profiled) -> str:
    if not best.copy_ms or not best.times:
        return ""
    line = lines[max(best.times, key=lambda one: one.copy_ms).line]
    return f"copies take {best.copy_ms / best.latency_ms:.0%}, most of it in {named(line)}: keep one layout there"


def _lower(lines: Sequence[Line], near: Sequence[LineTime], best: Profiled, lower: Sequence[str] | None) -> str:
    """Return the advice for lines that are near a peak of the machine."""
    if not near:
        return ""
    first = near[0]
    where = f"{named(lines[first.line])} takes {first.share:.0%}"
    bound = (first.compute or 0.0) > NEAR
    limit = f"{_at_most(first.compute)} of the FLOP rate" if bound else f"{_at_most(first.bandwidth)} of the bandwidth"
    if lower is None:
        return f"{where} at {limit}: a lower precision, as with torch.autocast"
    precision = precisions.base(best.name.partition("@")[2])
    left = [] if precision == "int8" else ["int8"] if precision in BYTES else lower
    options = " or ".join(f"--precision {one}" for one in left)
    return f"{where} at {limit}: {f'a lower precision, {options}' if options else 'only a smaller model takes less'}"


def _at_most(fraction: float | None) -> str:
    return f"{min(fraction or 0.0, 1.0):.0%}"


def _unexplained(time: LineTime) -> float:
    """Return the milliseconds of a line that its work does not explain."""
    return time.ms * (1 - min(max(time.compute or 0.0, time.bandwidth or 0.0), 1.0))


def _slow(lines: Sequence[Line], slow: LineTime, others: Sequence[Profiled]) -> str:
    """Return the advice for a line that takes longer than its work explains."""
    line = lines[slow.line]
    reached = max(slow.compute or 0.0, slow.bandwidth or 0.0)
    known = slow.compute is not None or slow.bandwidth is not None
    explained = f", of which its work explains {_at_most(reached)}" if known else ""
    text = f"{named(line)}, which takes {slow.ms:.3g} ms ({slow.share:.0%}){explained}"
    faster = [(time.ms, one.name) for one in others for time in one.times if time.line == slow.line]
    ms, name = min(faster, default=(slow.ms, ""))
    return f"{text}; {name} takes {ms:.3g} ms there" if ms < slow.ms / APART else text
