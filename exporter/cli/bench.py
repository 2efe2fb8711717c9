"""`exporter bench BUNDLE`: how fast is it on this machine?"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from exporter.cli._bundle import bundle_options
from exporter.cli._goal import chosen, goal_options


@click.command(name="bench", short_help="Time a bundle again, on this machine.")
@bundle_options
@click.option(
    "--time-budget",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds of timed calls an artifact and session, on average; each is called 12 times at least.",
)
@goal_options
def command(
    bundle: Path,
    threads: int | None,
    timeout: float,
    ops_libs: tuple[str, ...],
    allow_cpu_fallback: bool,
    cuda_graphs: bool,
    as_json: bool,
    quiet: bool,
    time_budget: float,
    **options: Any,
) -> int:
    """Check BUNDLE as `exporter check` does, then time its artifacts side by side, in Python and in C++.

    No model code is needed, so there is no eager: what the others are compared with is the first artifact that passes.

    Exit codes: 0 all passed, 1 an artifact was altered or lost parity, 2 there is no bundle with a golden to check by.
    """
    from exporter import environment, recheck, report
    from exporter.cli import _progress

    how = recheck.How(
        threads or environment.usable_cpus(), timeout, ops_libs, allow_cpu_fallback, cuda_graphs, time_budget
    )
    with _progress.listener(quiet=quiet) as listener:
        manifest = recheck.run(bundle, how, listener)
    manifest = dataclasses.replace(
        manifest, command=shlex.join(["exporter", *sys.argv[1:]]), goal=chosen(manifest.goal, options)
    )
    click.echo(report.render(manifest, "json" if as_json else "table", bundle), nl=False)
    return 0 if all(v.status == "passed" for v in manifest.variants) else 1
