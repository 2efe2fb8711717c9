"""`exporter models`: the recipes that are installed, and where others come from."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import click


@click.command(name="models")
def command() -> None:
    """List the models that have a recipe here, and the libraries whose models need none."""
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
    """What a source offers: its `summary`."""
    for statement in _parsed(f"exporter.model.sources.{source}").body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "summary":
            return str(ast.literal_eval(statement.value))
    return ""


def _summary(module: str) -> str:
    """First line of the module's docstring."""
    return (ast.get_docstring(_parsed(module)) or "").partition("\n")[0]


def _parsed(module: str) -> ast.Module:
    """The module's source, not imported: that would import torch."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # another package's may raise anything
        return ast.Module([], [])
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else "")
