"""`exporter pack BUNDLE`: a bundle as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle


@click.command(name="pack", short_help="Pack a bundle into one file.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: BUNDLE.tar.zst, beside it]")
@_bundle.trust_options
def command(bundle: Path, out: Path | None, **options: Any) -> None:
    """Check BUNDLE's hashes and put it into one file; the same bundle gives the same bytes.

    A signature has to be over this provenance.json, and of the bytes that SHA256SUMS lists; whose it is, only
    --public-key, or --identity with --issuer, tells.

    What several artifacts hold alike, up to 1 GB apart, is stored once. Packing takes 1.2 GB of memory.
    """
    from exporter.bundle import archive
    from exporter.report.rows import size_of

    place = bundle.resolve()
    out = out or place.with_name(place.name + archive.SUFFIX)
    total = archive.pack(bundle, out, _bundle.trusted(options))
    click.echo(f"{out}: {size_of(out.stat().st_size)}, unpacked {size_of(total)}")
