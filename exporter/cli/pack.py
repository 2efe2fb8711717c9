"""`exporter pack BUNDLE`: a bundle as one file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="pack", short_help="Put a bundle into one file.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: BUNDLE.tar.zst, beside it]")
def command(bundle: Path, out: Path | None) -> None:
    """Check BUNDLE's hashes and put it into one file; the same bundle gives the same bytes.

    What several artifacts hold alike, up to 1 GB apart, is stored once. Packing takes 1.2 GB of memory.
    """
    from exporter import archive
    from exporter.report.rows import size_of

    place = bundle.resolve()
    out = out or place.with_name(place.name + archive.SUFFIX)
    total = archive.pack(bundle, out)
    click.echo(f"{out}: {size_of(out.stat().st_size)}, unpacked {size_of(total)}")
