"""The type of a known cause."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cause:
    """A known cause. `sentence` describes the problem and `remedy` the solution; `remedies` override it by target.

    `patterns` are regular expressions for messages. A cause that exporter detects itself has none and is looked up by
    its name. If `only` lists targets, the patterns apply only to these, because other targets have similar messages.
    If torch.export gives this cause and it is `repairable`, `exporter repair` may find a patch.
    """

    name: str
    patterns: tuple[str, ...]
    sentence: str
    remedy: str
    remedies: dict[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    repairable: bool = False
