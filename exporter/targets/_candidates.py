"""Choices that --tune tries for several targets."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.core.tuning_records import Choice
from exporter.targets import Candidate, Options


def fewer_threads(options: Options) -> Iterator[Candidate]:
    """Yield half of the threads, half of those, and so on: small models may lose more time at barriers than they win.

    Nothing records them in an artifact, because the caller sets the number of threads.
    """
    threads = options.threads // 2
    while options.device == "cpu" and threads:
        yield Candidate(Choice("threads", (str(threads),)), at_load=True, advice=True)
        threads //= 2


def unset(options: Options, *values: str) -> Iterator[Candidate]:
    """Yield a choice of inductor's settings, unless the user has set one of them."""
    given = {one.partition("=")[0] for one in options.inductor}
    if given.isdisjoint(value.partition("=")[0] for value in values):
        yield Candidate(Choice("inductor", values))
