"""`exporter pack BUNDLE`: pack a bundle into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle


@click.command(name="pack", short_help="Pack a bundle into one file.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="[default: BUNDLE.tar.zst, next to it]")
@_bundle.trust_options
def command(bundle: Path, out: Path | None, **options: Any) -> None:
    """Check BUNDLE's hashes and pack it into one file; the same bundle always makes the same bytes.

    A signature must match this provenance.json and the hash in SHA256SUMS; the signer is verified only with
    --public-key, or with --identity and --issuer.

    Data that several artifacts share, up to 1 GB apart, is stored once. Packing needs 1.2 GB of memory.
    """
    from exporter.bundle import archive
    from exporter.report.rows import size_of

    place = bundle.resolve()
    out = out or place.with_name(place.name + archive.SUFFIX)
    total = archive.pack(bundle, out, _bundle.trusted(options))
    click.echo(f"{out}: {size_of(out.stat().st_size)}, unpacked {size_of(total)}")
