"""`exporter unpack FILE`: a bundle from the file that `exporter pack` made."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="unpack", short_help="Unpack a bundle from such a file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="[default: FILE without .tar.zst]")
@click.option(
    "--max-gb",
    type=click.FloatRange(0, min_open=True),
    default=32.0,
    show_default=True,
    help="Refuse to unpack more than this.",
)
def command(file: Path, out: Path | None, max_gb: float) -> None:
    """Make a bundle of FILE. It appears when every hash is right, and takes the place of nothing but a bundle.

    It need not be trusted to be unpacked; to be loaded it does, as any program.
    """
    from exporter.bundle import archive

    out = out or file.with_name(file.name.removesuffix(archive.SUFFIX))
    archive.unpack(file, out, int(max_gb * 1e9))
    click.echo(f"Next: exporter check {out}")
