"""What to ship, in one sentence, with what else there is. Nothing is called faster where intervals overlap."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.records import EAGER, Goal, Manifest, Timing, VariantRecord
from exporter.report.rows import failures, number, size_of

# From what moves most freely between machines to what holds this machine's code.
PORTABLE = ("onnx", "export", "script", "trace", "compile")


@dataclass(frozen=True)
class Choice:
    """An artifact that passed, in one of the sessions that it was timed in."""

    variant: VariantRecord
    session: str
    timing: Timing

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.bytes for file in self.variant.files)


def choices(manifest: Manifest) -> list[Choice]:
    """Artifacts that passed, were timed and keep the goal's bounds, the best first; each in its fastest session."""
    goal = manifest.goal
    found = []
    for variant in manifest.variants:
        if variant.status != "passed" or not variant.artifact:
            continue
        timings = {s: t for s, t in variant.timings.items() if goal.needs != "cpp" or s == "native"}
        if timings:
            session, timing = min(timings.items(), key=lambda item: item[1].median_ms)
            found.append(Choice(variant, session, timing))
    return sorted((c for c in found if not out_of_bounds(c, goal)), key=lambda c: _rank(c, goal))


def _rank(choice: Choice, goal: Goal) -> tuple[float, float]:
    if goal.name == "size":
        return choice.bytes, choice.timing.median_ms
    if goal.name == "portability":
        target = choice.variant.target
        return (PORTABLE.index(target) if target in PORTABLE else len(PORTABLE)), choice.timing.median_ms
    return choice.timing.median_ms, choice.bytes


def out_of_bounds(choice: Choice, goal: Goal) -> str:
    """The bound that the artifact does not keep; "" when it keeps all."""
    parity = choice.variant.parity
    if goal.max_p99_ms is not None and choice.timing.p99_ms > goal.max_p99_ms:
        return f"p99 is {number(choice.timing.p99_ms)} ms"
    if goal.max_mb is not None and choice.bytes > goal.max_mb * 1e6:
        return f"it is {size_of(choice.bytes)} large"
    if goal.min_cosine is not None and parity and parity.cosine is not None and parity.cosine < goal.min_cosine:
        return f"its cosine is {parity.cosine:.4f}"
    return ""


def pareto(found: list[Choice]) -> list[Choice]:
    """Those that no other beats in both latency and size, the fastest first."""
    front: list[Choice] = []
    for choice in sorted(found, key=lambda c: (c.timing.median_ms, c.bytes)):
        if not front or choice.bytes < front[-1].bytes:
            front.append(choice)
    return front


def sentences(manifest: Manifest) -> list[str]:
    """The summary and the recommendation."""
    asked = [v for v in manifest.variants if v.name != EAGER]
    failed = [v for v in failures(manifest) if v.name != EAGER]
    summary = f"{len(asked) - len(failed)} of {len(asked)} variants passed"
    if failed:
        summary += f"; failed: {', '.join(v.name for v in failed)}"
    if manifest.status == "interrupted":
        summary = f"The run was interrupted before its end; {summary}"
    elif manifest.status == "failed":
        summary = f"The model could not be prepared for export; {summary}"
    lines = [summary + "."]
    best = choices(manifest)
    if best:
        lines.append(_recommend(best, manifest.goal))
    elif any(v.timings and v.status == "passed" and v.artifact for v in manifest.variants):
        lines.append(f"No artifact keeps the bounds: {_bounds(manifest.goal)}.")
    elif any(v.status == "passed" and v.artifact for v in manifest.variants):
        lines.append("Nothing was timed, so nothing is recommended.")
    return lines


def _recommend(best: list[Choice], goal: Goal) -> str:
    first = best[0]
    path = first.variant.artifact.path if first.variant.artifact else ""
    text = f"Ship {path}: {number(first.timing.median_ms)} ms in {language(first.session)}"
    if first.timing.speedup is not None:
        text += f", {first.timing.speedup:.2f}x eager"
    if goal.name != "latency":
        text += f", {size_of(first.bytes)}"
    ties = [c for c in best[1:] if goal.name == "latency" and c.timing.ci95_ms[0] <= first.timing.ci95_ms[1]]
    if ties:
        text += f" (not distinguishable from {', '.join(c.variant.name for c in ties)})"
    text += "."
    interval = first.timing.speedup_ci95
    if interval is not None and interval[0] <= 1:
        text += " It is not distinguishable from eager, or slower."
    if bounds := _bounds(goal):
        text += f" It is the best for {goal.name} within {bounds}."
    return text


def _bounds(goal: Goal) -> str:
    """The goal's bounds in words; "" when it has none."""
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
    """The runners-up, and the artifacts that nothing beats in both latency and size, where there is more than one."""
    best = choices(manifest)
    lines = []
    if len(best) > 1:
        lines.append("Next: " + "; ".join(f"{_brief(c)}" for c in best[1:3]) + ".")
    front = pareto(best)
    if len(front) > 1:
        lines.append("Pareto of latency and size: " + "; ".join(map(_brief, front)) + ".")
    return lines


def _brief(choice: Choice) -> str:
    return (
        f"{choice.variant.name} {number(choice.timing.median_ms)} ms in {language(choice.session)}, "
        f"{size_of(choice.bytes)}"
    )


def language(session: str) -> str:
    """How a session is called in a sentence."""
    return "C++" if session == "native" else "Python"
