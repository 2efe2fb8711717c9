"""`exporter report BUNDLE`: render a report from a manifest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from exporter.cli._goal import chosen, goal_options


@click.command(name="report", short_help="Show a bundle's results, or compare several bundles.")
@click.argument("bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "md", "html"]), default="table", show_default=True
)
@goal_options("the bundle's own")
def command(bundles: tuple[Path, ...], form: str, **options: Any) -> None:
    """Show the results of the run that made BUNDLE. Goal options change the recommendation.

    With several bundles, --format html writes one page that compares them.
    """
    from exporter import report
    from exporter.bundle import integrity

    manifests = map(integrity.shown, bundles)
    found = [(dataclasses.replace(m, goal=chosen(m.goal, options)), b) for m, b in zip(manifests, bundles, strict=True)]
    click.echo(report.render_all(found, form), nl=False)
