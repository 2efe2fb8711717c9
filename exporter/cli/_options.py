"""Options that several commands have, each with its own words where they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from exporter.core.limits import MAX_THREADS

Command = Callable[..., Any]
Option = Callable[[Command], Command]
THREADS = click.option(
    "--threads", type=click.IntRange(1, MAX_THREADS), help="Threads of one call on the CPU.  [default: all cores]"
)

WAIT_QUIET = click.option(
    "--wait-quiet",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="Before timing, wait up to so long until nothing else is busy on this machine.  [default: do not wait]",
)

QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress.")
TRACEBACKS = click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Tracebacks.")


def together(*options: Option) -> Option:
    """All of these, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def time_budget(told: str) -> Option:
    """`--time-budget`, and what its seconds are of."""
    kind = click.FloatRange(0.1)
    return click.option("--time-budget", type=kind, default=5.0, show_default=True, metavar="SECONDS", help=told)


def timeout(seconds: float, told: str = "Limit for one answer.") -> Option:
    """`--timeout`, and what it limits."""
    kind = click.FloatRange(1)
    return click.option("--timeout", type=kind, default=seconds, show_default=True, metavar="SECONDS", help=told)


def ops_libs(told: str = "Library that registers operators of your own, as at the export; may be repeated.") -> Option:
    """`--ops-lib`, any number of times."""
    kind = click.Path(exists=True, dir_okay=False, resolve_path=True)
    return click.option("--ops-lib", "ops_libs", multiple=True, type=kind, help=told)
