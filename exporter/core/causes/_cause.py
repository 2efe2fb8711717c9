"""What a cause is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cause:
    """One cause. `sentence` says what in the model is in the way, `remedy` what to do; `remedies` are by target.

    `patterns` are of messages. A cause that exporter finds by a run's own facts has none, and is asked for by its name.

    Where `only` names targets, it is none of another target's failures: words may be alike.
    """

    name: str
    patterns: tuple[str, ...]
    sentence: str
    remedy: str
    remedies: dict[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
