"""`exporter compare OLD NEW`: decide whether the new bundle can replace the old one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle, _options
from exporter.core.settings import SessionSettings, TimingSettings


@click.command(name="compare", short_help="Compare two bundles: contract, parity, size, latency.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--measure", is_flag=True, help="Time both bundles side by side on this machine; this needs no model code."
)
@click.option(
    "--max-slower",
    type=click.FloatRange(0),
    callback=_options.finite,
    metavar="PERCENT",
    help="Fail if a variant is slower by more than this.",
)
@click.option(
    "--max-larger",
    type=click.FloatRange(0),
    callback=_options.finite,
    metavar="PERCENT",
    help="Fail if a variant is larger by more than this.",
)
@click.option("--allow-breaking", is_flag=True, help="Allow contract changes that break callers.")
@_options.of(TimingSettings, "time_budget", "wait_quiet")
@_options.of(SessionSettings, "threads")
@_options.of(SessionSettings, "timeout", default=600.0, help="Time limit for one answer of a session, in seconds.")
@_bundle.OPS_LIBS
@click.option("--format", "form", type=click.Choice(["table", "json", "md"]), default="table", show_default=True)
@_options.QUIET
@_options.TRACEBACKS
def command(old: Path, new: Path, **options: Any) -> int:
    """Compare bundle NEW with bundle OLD, variant by variant.

    A contract change is breaking if NEW may refuse a call that OLD accepts, or returns another form of result. Without
    --measure, each latency comes from its own run, so --max-slower requires --measure.

    Exit codes: 0 NEW can replace OLD; 1 the contract breaks callers, a variant is missing, no longer passes, does not
    run here or exceeds a limit, no variant is in both, or a file was altered; 2 a path is not a bundle.
    """
    from exporter.cli import _progress
    from exporter.report import comparison
    from exporter.runs.compare_bundles import Limits, TimingOptions, run

    measure = options["measure"]
    if options["max_slower"] is not None and not measure:
        raise click.UsageError("--max-slower compares latencies measured side by side: add --measure")
    limits = Limits(options["max_slower"], options["max_larger"], options["allow_breaking"])
    how = TimingOptions(**_options.given(TimingOptions, options)) if measure else None
    with _progress.listener(quiet=options["quiet"] or not measure) as listener:
        found = run((old, new), limits, how, listener)
    click.echo(comparison.render(found, options["form"]), nl=False)
    return 1 if found.broken else 0
