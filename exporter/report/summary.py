"""What to ship, in one sentence. Nothing is called faster where intervals overlap."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.records import Manifest, Timing, VariantRecord
from exporter.report.rows import failures, number


@dataclass(frozen=True)
class Choice:
    """An artifact that passed, and its best timed session."""

    variant: VariantRecord
    session: str
    timing: Timing


def choices(manifest: Manifest) -> list[Choice]:
    """Artifacts that passed and were timed, the fastest first; each in its fastest session."""
    found = []
    for variant in manifest.variants:
        if variant.status == "passed" and variant.artifact and variant.timings:
            session, timing = min(variant.timings.items(), key=lambda item: item[1].median_ms)
            found.append(Choice(variant, session, timing))
    return sorted(found, key=lambda choice: choice.timing.median_ms)


def sentences(manifest: Manifest) -> list[str]:
    """The summary and the recommendation."""
    asked = [v for v in manifest.variants if v.name != "eager"]
    failed = [v for v in failures(manifest) if v.name != "eager"]
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
        lines.append(_recommend(best))
    elif any(v.status == "passed" and v.artifact for v in manifest.variants):
        lines.append("Nothing was timed, so nothing is recommended.")
    return lines


def _recommend(best: list[Choice]) -> str:
    first = best[0]
    path = first.variant.artifact.path if first.variant.artifact else ""
    text = f"Ship {path}: {number(first.timing.median_ms)} ms in {language(first.session)}"
    if first.timing.speedup is not None:
        text += f", {first.timing.speedup:.2f}x eager"
    ties = [c for c in best[1:] if c.timing.ci95_ms[0] <= first.timing.ci95_ms[1]]
    if ties:
        text += f" (not distinguishable from {', '.join(c.variant.name for c in ties)})"
    text += "."
    interval = first.timing.speedup_ci95
    if interval is not None and interval[0] <= 1:
        text += " It is not distinguishable from eager, or slower."
    return text


def language(session: str) -> str:
    """How a session is called in a sentence."""
    return "C++" if session == "native" else "Python"
