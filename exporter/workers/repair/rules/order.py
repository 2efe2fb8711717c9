"""The rules, in the order in which they propose."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.workers.repair.rules import arrays, checks, choice, cond, effects, in_place, keys, numbers, sizes, where
from exporter.workers.repair.rules._rule import Failure, Proposal, Rule

RULES: tuple[Rule, ...] = tuple(
    rule.propose for rule in (effects, checks, keys, arrays, numbers, where, cond, choice, sizes, in_place)
)


def propose(failure: Failure) -> Iterator[Proposal]:
    """Yield the proposals of every rule for an obstacle."""
    for rule in RULES:
        yield from rule(failure)
