"""Say in a sentence what to ship, and list the alternatives. Overlapping intervals are never reported as faster."""

from __future__ import annotations

from dataclasses import dataclass

from exporter import targets
from exporter.core.records import EAGER, UNCHECKED, Goal, Manifest, VariantRecord
from exporter.core.timing_records import Timing, runs_for
from exporter.report.rows import failures, number, size_of

WIDE = 0.03  # relative half width of an interval, above which a timing counts as unstable
HALF = 0.5  # share of the CPUs that other programs took
BENCH = "`exporter bench BUNDLE --wait-quiet 600`"
AGAIN = f"Time it again on a quiet machine: {BENCH}."
UNBEATEN = "Pareto front: nothing is both faster and smaller than one of these."


@dataclass(frozen=True)
class Choice:
    """An artifact that passed, with its timing in one session, at the example or at one point of the sweep."""

    variant: VariantRecord
    session: str
    timing: Timing
    items: int = 1  # per call: the batch if the goal is throughput
    point: str = ""  # of the sweep; empty for the example

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(file.bytes for file in self.variant.files)

    @property
    def cost(self) -> float:
        """Milliseconds per item."""
        return self.timing.median_ms / self.items

    @property
    def cost_ci95(self) -> tuple[float, float]:
        """The 95% interval of the milliseconds per item."""
        low, high = self.timing.ci95_ms
        return low / self.items, high / self.items


def choices(manifest: Manifest) -> list[Choice]:
    """Return the artifacts that passed, were timed and meet the goal's bounds, best first.

    Each is in its fastest session and, for throughput, at the point of the sweep with the most items a second.
    """
    goal, found = manifest.goal, []
    for variant in manifest.variants:
        if variant.status == "passed" and variant.artifact:
            timed = [c for c in _timed(manifest, variant) if not out_of_bounds(c, goal)]
            found += sorted(timed, key=lambda c: c.cost)[:1]
    return sorted(found, key=lambda c: _rank(c, goal))


def recommended(manifest: Manifest) -> Choice | None:
    """Return the artifact to ship; None if nothing qualifies, or if the comparison is inconclusive."""
    best = choices(manifest)
    return best[0] if best and not _is_in_doubt(best[0], manifest) else None


def _timed(manifest: Manifest, variant: VariantRecord) -> list[Choice]:
    goal = manifest.goal
    everywhere = goal.name == "throughput"
    items = {point: _items(manifest, point) for point in ("", *variant.sweep)} if everywhere else {"": 1}
    timings = {"": variant.timings} | variant.sweep
    return [
        Choice(variant, session, timing, items[point], point)
        for point in items
        for session, timing in timings[point].items()
        if goal.needs != "cpp" or session == "native"
    ]


def _items(manifest: Manifest, point: str) -> int:
    """Return the batch size of one call, or 1 if no size is called `batch`."""
    return (manifest.model.sizes | manifest.points.get(point, {})).get("batch", 1)


def _rank(choice: Choice, goal: Goal) -> tuple[float, float]:
    if goal.name == "size":
        return choice.bytes, choice.cost
    if goal.name == "portability":
        return targets.facts(choice.variant.target).portability, choice.cost
    return choice.cost, choice.bytes


def out_of_bounds(choice: Choice, goal: Goal) -> str:
    """Return the bound of the goal that the artifact violates, or ""."""
    parity = choice.variant.parity
    p99 = choice.timing.p99_ms if choice.timing.runs >= runs_for(99) else None
    if goal.max_p99_ms is not None and p99 is None:
        return f"p99 is unknown: it needs {runs_for(99)} runs, and there are {choice.timing.runs}"
    if goal.max_p99_ms is not None and p99 is not None and p99 > goal.max_p99_ms:
        return f"p99 is {number(p99)} ms"
    if goal.max_mb is not None and choice.bytes > goal.max_mb * 1e6:
        return f"its size is {size_of(choice.bytes)}"
    if goal.min_cosine is not None and parity and parity.cosine is not None and parity.cosine < goal.min_cosine:
        return f"its cosine is {parity.cosine:.4f}"
    return ""


def pareto(found: list[Choice]) -> list[Choice]:
    """Return the Pareto front of speed and size, fastest first. Sizes that are displayed alike count as equal."""
    front: list[Choice] = []
    for choice in sorted(found, key=lambda c: (c.cost, c.bytes)):
        if not front or _is_smaller(choice, front[-1]):
            front.append(choice)
    return front


def _is_smaller(one: Choice, other: Choice) -> bool:
    return one.bytes < other.bytes and size_of(one.bytes) != size_of(other.bytes)


def sentences(manifest: Manifest) -> list[str]:
    """Return the summary and the recommendation."""
    asked = [v for v in manifest.variants if v.name != EAGER]
    others = [v for v in failures(manifest) if v.name != EAGER]
    summary = f"{len(asked) - len(others)} of {len(asked)} variants passed"
    for what in ("failed", UNCHECKED):
        if names := [v.name for v in others if (v.stage == UNCHECKED) == (what == UNCHECKED)]:
            summary += f"; {what}: {', '.join(names)}"
    if manifest.status == "interrupted":
        summary = f"The run was interrupted; {summary}"
    elif manifest.status == "failed":
        summary = f"The model could not be prepared for export; {summary}"
    lines = [summary + "."]
    best = choices(manifest)
    if best and (busy := _busy(manifest)):
        lines.append(busy)
    if best and recommended(manifest) is None:
        lines.append(f"The comparison is inconclusive, so nothing is recommended. {AGAIN}")
    elif best:
        lines.append(_recommend(best, manifest))
    elif any(v.timings and v.status == "passed" and v.artifact for v in manifest.variants):
        lines.append(f"No artifact meets the limits: {_bounds(manifest.goal)}.")
    elif any(v.status == "passed" and v.artifact for v in manifest.variants):
        lines.append("Nothing was timed, so nothing is recommended.")
    return lines


def _busy(manifest: Manifest) -> str:
    """Return a sentence if the machine was busy during timing, else ""."""
    machine = manifest.machine
    return f"The machine was busy during timing: {machine.describe()}." if machine and machine.busy else ""


def _is_in_doubt(first: Choice, manifest: Manifest) -> bool:
    """Return whether timing was too disturbed to recommend anything. Only goals that depend on timing are in doubt."""
    machine = manifest.machine
    if machine is None or not machine.busy or manifest.goal.name not in ("latency", "throughput"):
        return False
    return machine.lost >= HALF or not first.timing.stable


def _slack(manifest: Manifest) -> float:
    """Return how much to widen intervals, relatively: the share of the machine that other programs took."""
    return manifest.machine.lost if manifest.machine and manifest.machine.busy else 0.0


def _faster(timing: Timing, baseline: str) -> str:
    """Return `1.52x eager`, or only the interval if it is wide."""
    interval = timing.speedup_ci95
    if interval is None or interval[1] - interval[0] <= WIDE * (interval[1] + interval[0]):
        return f"{timing.speedup:.2f}x {baseline}"
    low, high = (f"{bound:.2g}" if bound < 100 else f"{bound:.0f}" for bound in interval)
    return f"{low}x to {high}x {baseline}"


def _recommend(best: list[Choice], manifest: Manifest) -> str:
    first, goal = best[0], manifest.goal
    path = first.variant.artifact.path if first.variant.artifact else ""
    text = f"Ship {path}{_at(first)}: {_speed(first, goal)}"
    if first.timing.speedup is not None:
        text += f", {_faster(first.timing, manifest.baseline)}"
    if goal.name in ("size", "portability"):
        text += f", {size_of(first.bytes)}"
    timed = goal.name in ("latency", "throughput")
    slack = _slack(manifest)
    slowest = first.cost_ci95[1] * (1 + slack)
    ties = [c for c in best[1:] if timed and c.cost_ci95[0] * (1 - slack) <= slowest]
    if ties:
        text += f" (not distinguishable from {', '.join(c.variant.name + _at(c) for c in ties)})"
    text += "."
    interval = first.timing.speedup_ci95
    if interval is not None and interval[0] * (1 - slack) <= 1 and first.variant.name != manifest.baseline:
        busy = "The machine was busy: it may be" if interval[0] > 1 else "It is"
        text += f" {busy} slower than {manifest.baseline}, or not distinguishable from it."
    if bounds := _bounds(goal):
        text += f" It is the best for {goal.name} within {bounds}."
    return text


def _at(choice: Choice) -> str:
    return f" at {choice.point}" if choice.point else ""


def _speed(choice: Choice, goal: Goal) -> str:
    rate = f"{number(1000 / choice.cost)} items/s, " if goal.name == "throughput" else ""
    return f"{rate}{number(choice.timing.median_ms)} ms in {language(choice.session)}"


def _bounds(goal: Goal) -> str:
    """Return the goal's bounds in words, or ""."""
    parts = []
    if goal.max_p99_ms is not None:
        parts.append(f"p99 ≤ {goal.max_p99_ms:g} ms")
    if goal.max_mb is not None:
        parts.append(f"size ≤ {goal.max_mb:g} MB")
    if goal.min_cosine is not None:
        parts.append(f"cosine ≥ {goal.min_cosine:g}")
    if goal.needs:
        parts.append("runs in C++")
    return ", ".join(parts)


def alternatives(manifest: Manifest) -> list[str]:
    """Return a line with the runners-up of the recommendation, or nothing."""
    found = choices(manifest)
    next_best = found[1:3] if recommended(manifest) else []
    return ["Next: " + "; ".join(_brief(c, manifest.goal) for c in next_best) + "."] if next_best else []


def unbeaten(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return headings and a row for each artifact on the Pareto front, or nothing if it has fewer than two."""
    front = pareto(choices(manifest))
    if len(front) < 2:
        return []
    per_item = manifest.goal.name == "throughput"
    headings = ("variant", "session", "items/s" if per_item else "median", "size")
    speeds = (number(1000 / c.cost) if per_item else f"{number(c.cost)} ms" for c in front)
    lines = ((c.variant.name + _at(c), c.session, s, size_of(c.bytes)) for c, s in zip(front, speeds, strict=True))
    return [headings, *lines]


def _brief(choice: Choice, goal: Goal) -> str:
    return f"{choice.variant.name}{_at(choice)} {_speed(choice, goal)}, {size_of(choice.bytes)}"


def language(session: str) -> str:
    """Return the name of a session in a sentence."""
    return "C++" if session == "native" else "Python"
