"""`exporter targets`: list the targets."""

from __future__ import annotations

import textwrap

import click

INDENT, WIDTH = 24, 96  # columns of the lines below a target's first line


@click.command(name="targets")
def command() -> None:
    """List the targets, their variants and their artifacts."""
    from exporter import targets
    from exporter.core.errors import MissingDependency

    for name, target in sorted(targets.usable().items()):
        doc = (getattr(target, "__doc__", "") or "").partition("\n")[0]
        click.echo(f"{name:<8} {target.artifact:<14} {doc}")
        live = [f"{name}:{v}" for v in target.variants if v]
        if live:
            also = textwrap.wrap(f"also {', '.join(live)}", WIDTH, break_on_hyphens=False)
            click.echo(textwrap.indent("\n".join(also), " " * INDENT))
        try:
            targets.require(target)
        except MissingDependency as missing:
            click.echo(f"{' ' * INDENT}{missing}: {missing.remedy}")
    for refused in targets.refused():
        click.echo(f"{refused}: {refused.remedy}", err=True)
