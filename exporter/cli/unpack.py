"""`exporter unpack FILE`: unpack a bundle from a file that `exporter pack` made."""

from __future__ import annotations

from pathlib import Path

import click

from exporter.cli import _options
from exporter.core.errors import UsageError


@click.command(name="unpack", short_help="Unpack a bundle from a packed file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[default: FILE without .tar.zst]")
@click.option(
    "--max-gb",
    type=click.FloatRange(0, min_open=True),
    callback=_options.finite,
    default=32.0,
    show_default=True,
    help="Refuse to unpack more than this.",
)
def command(file: Path, out: Path | None, max_gb: float) -> None:
    """Unpack a bundle from FILE. Writes --out only if every hash matches, and replaces nothing but a bundle.

    FILE need not be trusted to be unpacked. Loading its artifacts requires trust, as running a program does.
    """
    from exporter.bundle import archive

    if out is None and not file.name.endswith(archive.SUFFIX):
        cause = f"{file} is not a packed bundle: its name does not end with {archive.SUFFIX}"
        raise UsageError(cause, "give a file that `exporter pack` made; if this is one, also give --out")
    out = out or file.with_name(file.name.removesuffix(archive.SUFFIX))
    archive.unpack(file, out, int(max_gb * 1e9))
    click.echo(f"Next: exporter check {out}")
