"""`exporter models`: the recipes that are installed."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import click


@click.command(name="models")
def command() -> None:
    """List the models that have a recipe here."""
    from exporter import recipes

    found = recipes.available()
    width = max(map(len, found), default=0)
    for name in sorted(found):
        click.echo(f"{name:<{width}}  {_summary(found[name].partition(':')[0])}")
    click.echo("\nA model of your own: exporter export path/to/file.py:NAME (see CONTRIBUTING.md)", err=True)


def _summary(module: str) -> str:
    """First line of the module's docstring, read without importing it: that would import torch."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    doc = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return doc.partition("\n")[0]
