"""`exporter report BUNDLE`: a report from a manifest."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="report")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["table", "json", "md"]), default="table", show_default=True)
def command(bundle: Path, form: str) -> None:
    """Show what the run that made BUNDLE found."""
    from exporter import report
    from exporter.bundle import read_manifest

    click.echo(report.render(read_manifest(bundle), form, bundle), nl=False)
