"""`exporter check BUNDLE`: is it still what it was, and is it right on this machine?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle


@click.command(name="check", short_help="Check a bundle again, on this machine.")
@_bundle.bundle_options
def command(bundle: Path, **options: Any) -> int:
    """Check BUNDLE's hashes and signature, then parity again from its golden, in Python and, where built, in C++.

    Nothing is loaded before SHA256SUMS, bom.cdx.json, provenance.json and the signature are right, and no artifact
    whose hash is wrong.

    Exit codes: 0 all passed, 1 a file was altered or parity lost, 2 there is no bundle with a golden to check by.
    """
    return _bundle.show(_bundle.recheck(bundle, options), bundle, options)
