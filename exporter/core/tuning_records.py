"""What tuning tried for a variant: the choices, and how the latency changed with each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from exporter.core.json_schema import described
from exporter.core.option import settings


@dataclass(frozen=True)
class Choice:
    """Another value of one setting."""

    setting: str = described(
        "The setting: inductor, graph_optimization, session_options or another option of `export`, or huge_pages of a "
        "program in C++."
    )
    values: tuple[str, ...] = described("Its value; for a setting that is a list, the values that are added to it.")

    def __str__(self) -> str:
        """Return it as notes name it."""
        values = ", ".join(self.values)
        return values if all("=" in value for value in self.values) else f"{self.setting}={values}"


@dataclass(frozen=True)
class Tried:
    """A choice that tuning tried beside the variant as it was then, with the choices kept before.

    The ratio is the latency with the choice over that without it, in the session in which it is largest. It is null if
    nothing was measured.
    """

    choice: Choice = described("The choice.")
    verdict: Literal["kept", "advice", "rejected"] = described(
        "kept: the artifact has it. advice: it is faster, and whoever loads the artifact chooses it. rejected: neither."
    )
    reason: str = described("Why it was rejected; empty otherwise.", "")
    session: str = described("Language of the session that the ratio is of: python or native.", "")
    ratio: float | None = described("Latency with the choice over that without it, at the example's sizes.", None)
    low: float | None = described("Lower bound of the ratio's 95% interval.", None, minimum=0)
    high: float | None = described("Upper bound of the ratio's 95% interval.", None, minimum=0)

    @property
    def gain(self) -> str:
        """Return how many times as fast the variant is with the choice, with the 95% interval; "" if unknown."""
        if not self.ratio or not self.low or not self.high:
            return ""
        return f"{1 / self.ratio:.2f}x ({1 / self.high:.2f}…{1 / self.low:.2f})"


def kept(tried: Iterable[Tried]) -> tuple[Choice, ...]:
    """Return the choices that were kept."""
    return tuple(one.choice for one in tried if one.verdict == "kept")


def changed(record: Any, choices: Iterable[Choice]) -> Any:
    """Return a record of settings with these choices made in it."""
    kinds = {one.name: one.kind for one in settings(record)}
    for choice in choices:
        now = getattr(record, choice.setting)
        kind = kinds.get(choice.setting, type(now))
        if isinstance(now, tuple):
            value: Any = (*now, *choice.values)
        else:
            value = choice.values[0] == "True" if kind is bool else kind(choice.values[0])
        record = replace(record, **{choice.setting: value})
    return record


def told(tried: Sequence[Tried], threads: int = 0) -> list[str]:
    """Return a line on what was kept, and one on what whoever loads the artifact may choose.

    `threads` is the number with which it was loaded, which is no advice any more.
    """
    if not tried:
        return []
    chosen = "; ".join(f"{one.choice}, {one.gain}" for one in tried if one.verdict == "kept")
    new = [one for one in tried if one.verdict == "advice" and one.choice != Choice("threads", (str(threads),))]
    advice = "; ".join(f"{one.choice}, {one.gain} in {one.session}" for one in new)
    measured = sum(one.ratio is not None for one in tried)
    lines = [f"tuned: {chosen}" if chosen else f"tuned: nothing kept, {measured} of {len(tried)} choices measured"]
    return [*lines, *([f"faster if loaded with {advice}"] if advice else [])]
