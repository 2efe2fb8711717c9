"""`exporter compare OLD NEW`: can the new bundle take the old one's place?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle, _options
from exporter.core.settings import SessionSettings, TimingSettings


@click.command(name="compare", short_help="Compare two bundles: contract, parity, size, latency.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--measure", is_flag=True, help="Time both side by side on this machine, without the model's code.")
@click.option(
    "--max-slower", type=click.FloatRange(0), metavar="PERCENT", help="Fail where a variant is slower by more."
)
@click.option(
    "--max-larger", type=click.FloatRange(0), metavar="PERCENT", help="Fail where a variant is larger by more."
)
@click.option("--allow-breaking", is_flag=True, help="Let the contract change in ways that break callers.")
@_options.of(TimingSettings, "time_budget")
@_options.of(SessionSettings, "threads")
@_options.of(SessionSettings, "timeout", default=600.0, help="Limit for one answer of a session, in seconds.")
@_bundle.OPS_LIBS
@click.option("--format", "form", type=click.Choice(["table", "json", "md"]), default="table", show_default=True)
@_options.QUIET
@_options.TRACEBACKS
def command(old: Path, new: Path, **options: Any) -> int:
    """Compare bundle NEW with bundle OLD, variant by variant.

    A change of the contract is breaking where a call that OLD takes may be refused by NEW or gets something of another
    form. Without --measure latency is what each run measured in its own time, so --max-slower wants --measure.

    Exit codes: 0 NEW can take OLD's place, 1 a contract breaks, a variant is gone, does not pass any more, does not run
    here, or is slower or larger than may be, or a file of a bundle was altered; 2 there are no two bundles to compare.
    """
    from exporter.cli import _progress
    from exporter.report import comparison
    from exporter.runs.compare_bundles import Limits, TimingOptions, run

    measure = options["measure"]
    if options["max_slower"] is not None and not measure:
        raise click.UsageError("--max-slower needs latencies measured side by side: add --measure")
    limits = Limits(options["max_slower"], options["max_larger"], options["allow_breaking"])
    how = TimingOptions(**_options.given(TimingOptions, options)) if measure else None
    with _progress.listener(quiet=options["quiet"] or not measure) as listener:
        found = run((old, new), limits, how, listener)
    click.echo(comparison.render(found, options["form"]), nl=False)
    return 1 if found.broken else 0
