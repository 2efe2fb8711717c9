"""`exporter models`: list the installed recipes and the other sources of models."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import click


@click.command(name="models", short_help="List the recipes and the supported libraries.")
def command() -> None:
    """List the installed recipes, and the libraries whose models need no recipe."""
    from exporter.model import recipes

    found = recipes.available()
    width = max(map(len, found), default=0)
    for name in sorted(found):
        click.echo(f"{name:<{width}}  {_summary(found[name].partition(':')[0])}")
    prefixes = [f"{source}:NAME" for source in recipes.sources()]
    lines = [*zip(prefixes, map(_offer, recipes.sources()), strict=True), ("FILE.pt, FILE.pt2", _offer("saved"))]
    lines.append(("FILE.py:NAME", "your own model: the function NAME returns it, NAME_inputs returns its inputs"))
    click.echo()
    for name, summary in lines:
        click.echo(f"{name:<18} {summary}")


def _offer(source: str) -> str:
    """Return the `summary` of a source."""
    for statement in _parsed(f"exporter.model.sources.{source}").body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "summary":
            return str(ast.literal_eval(statement.value))
    return ""


def _summary(module: str) -> str:
    """Return the first line of the module's docstring."""
    return (ast.get_docstring(_parsed(module)) or "").partition("\n")[0]


def _parsed(module: str) -> ast.Module:
    """Parse the module's source. Importing it would import torch."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # another package's module may raise anything
        return ast.Module([], [])
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else "")
