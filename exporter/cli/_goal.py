"""Options that say what to recommend, shared by the commands that do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from exporter.cli import _options

if TYPE_CHECKING:
    from exporter.core.records import Goal

goal_options = _options.together(
    click.option(
        "--goal",
        type=click.Choice(["latency", "throughput", "size", "portability"]),
        help="What the recommendation looks for: the fastest artifact at the example's size, the one that does most a "
        "second at any of the sizes timed, the smallest, or the one that moves most freely between machines.  "
        "[default: latency]",
    ),
    click.option("--max-p99-ms", type=click.FloatRange(0), metavar="MS", help="Recommend nothing slower at its p99."),
    click.option("--max-mb", type=click.FloatRange(0), metavar="MB", help="Recommend nothing larger."),
    click.option(
        "--min-cosine", type=click.FloatRange(0, 1), help="Recommend nothing further from the float64 reference."
    ),
    click.option("--needs", type=click.Choice(["cpp"]), help="Recommend only what runs in C++."),
)


def least_runs(options: dict[str, Any]) -> int:
    """How many calls of each artifact the goal's bounds want."""
    from exporter.core.records import runs_for

    return 0 if options["max_p99_ms"] is None else runs_for(99)


def chosen(usual: Goal, options: dict[str, Any]) -> Goal:
    """The goal, with what the command line says of it."""
    named = {"name": options["goal"]} | {k: options[k] for k in ("max_p99_ms", "max_mb", "min_cosine", "needs")}
    return dataclasses.replace(usual, **{key: value for key, value in named.items() if value is not None})
