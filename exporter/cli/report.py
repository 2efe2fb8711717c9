"""`exporter report BUNDLE`: a report from a manifest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from exporter.cli._goal import chosen, goal_options


@click.command(name="report")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["table", "json", "md"]), default="table", show_default=True)
@goal_options
def command(bundle: Path, form: str, **options: Any) -> None:
    """Show what the run that made BUNDLE found; recommend by another goal than it had."""
    from exporter import report
    from exporter.bundle import read_manifest

    manifest = read_manifest(bundle)
    manifest = dataclasses.replace(manifest, goal=chosen(manifest.goal, options))
    click.echo(report.render(manifest, form, bundle), nl=False)
