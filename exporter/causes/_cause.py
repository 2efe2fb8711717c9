"""What a cause is."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cause:
    """One cause. `sentence` says what in the model is in the way, `remedy` what to do; `remedies` are by target."""

    name: str
    patterns: tuple[str, ...]
    sentence: str
    remedy: str
    remedies: dict[str, str] = field(default_factory=dict)
