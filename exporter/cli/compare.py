"""`exporter compare OLD NEW`: can the new bundle take the old one's place?"""

from __future__ import annotations

from pathlib import Path

import click

from exporter.cli import _options


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
@_options.time_budget("With --measure: seconds of timed calls of each artifact and session.")
@_options.THREADS
@_options.timeout(600.0)
@_options.ops_libs("With --measure: library that registers operators of your own; may be repeated.")
@click.option("--format", "form", type=click.Choice(["table", "json", "md"]), default="table", show_default=True)
@_options.QUIET
@_options.TRACEBACKS
def command(
    old: Path,
    new: Path,
    measure: bool,
    max_slower: float | None,
    max_larger: float | None,
    allow_breaking: bool,
    time_budget: float,
    threads: int | None,
    timeout: float,
    ops_libs: tuple[str, ...],
    form: str,
    quiet: bool,
) -> int:
    """Compare bundle NEW with bundle OLD, variant by variant.

    A change of the contract is breaking where a call that OLD takes may be refused by NEW or gets something of another
    form. Without --measure latency is what each run measured in its own time, so --max-slower wants --measure.

    Exit codes: 0 NEW can take OLD's place, 1 a contract breaks, a variant is gone, does not pass any more, does not run
    here, or is slower or larger than may be, or a file of a bundle was altered; 2 there are no two bundles to compare.
    """
    from exporter.cli import _progress
    from exporter.core import environment
    from exporter.report import comparison
    from exporter.runs import compare_bundles

    if max_slower is not None and not measure:
        raise click.UsageError("--max-slower is about what is measured side by side: add --measure")
    how = (
        compare_bundles.TimingOptions(time_budget, threads or environment.usable_cpus(), timeout, ops_libs)
        if measure
        else None
    )
    with _progress.listener(quiet=quiet or not measure) as listener:
        found = compare_bundles.run(
            (old, new), compare_bundles.Limits(max_slower, max_larger, allow_breaking), how, listener
        )
    click.echo(comparison.render(found, form), nl=False)
    return 1 if found.broken else 0
