"""`exporter sign BUNDLE`: sign a bundle's provenance."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from exporter.cli import _options
from exporter.core.errors import UsageError

PASSWORD = "EXPORTER_KEY_PASSWORD"


@click.command(name="sign", short_help="Sign a bundle's provenance.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PEM",
    help="Private key: Ed25519, ECDSA or RSA. Without it, sigstore signs with your identity (pip install "
    f"'exporter[sigstore]'). The password of an encrypted key is read from {PASSWORD} or from the terminal.",
)
@_options.TRACEBACKS
def command(bundle: Path, key: Path | None) -> int:
    """Verify BUNDLE's files and sign its provenance.json, which holds the hash of every other file.

    `exporter check --public-key`, or `--identity` with `--issuer`, verifies the signature.

    Exit codes: 0 signed, 1 the bundle was altered or sigstore cannot be reached, 2 the bundle or the key is missing,
    or the signature cannot be written.
    """
    from exporter.bundle import integrity

    click.echo(integrity.sign(bundle, key, _password))
    return 0


def _password() -> str:
    password: str = os.environ.get(PASSWORD, "")
    if not password and not sys.stdin.isatty():
        raise UsageError("the key needs a password, and there is no terminal to ask for it", f"set {PASSWORD}")
    return password or str(click.prompt("Password of the key", hide_input=True, err=True))
