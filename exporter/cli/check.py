"""`exporter check BUNDLE`: verify that a bundle is unaltered and right on this machine."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from exporter.cli import _bundle

RECORDED = ("threads", "timeout", "ops_libs", "allow_cpu_fallback", "cuda_graphs")  # --rebuild has them from the bundle


@click.command(name="check", short_help="Check a bundle again, on this machine.")
@_bundle.bundle_options
@click.option(
    "--rebuild",
    is_flag=True,
    help="Build the bundle again in a temporary folder with the recorded settings, and compare each file. This runs "
    "the model's code. --json prints the result for each file.",
)
def command(bundle: Path, rebuild: bool, **options: Any) -> int:
    """Check BUNDLE's hashes and signature, then parity again from its golden, in Python and, where built, in C++.

    Before anything is loaded, SHA256SUMS, bom.cdx.json, provenance.json and the signature are verified. An artifact
    whose hash differs is never loaded.

    --rebuild needs the recipe, the checkpoint and the inputs whose hashes are in provenance.json. It reports each file
    as identical, different only in known places (times, temporary paths, generated names), different in numbers, or
    different.

    Exit codes: 0 every variant passed, 1 a file was altered, parity was lost, or the rebuild differs; 2 the path holds
    no bundle with an intact golden, or the bundle cannot be rebuilt.
    """
    if not rebuild:
        return _bundle.show(_bundle.recheck(bundle, options), bundle, options)
    given = click.get_current_context().get_parameter_source
    if any(given(name) is not ParameterSource.DEFAULT for name in RECORDED):
        raise click.UsageError("--rebuild uses the settings recorded in the manifest: remove the other options")
    return _rebuild(bundle, options)


def _rebuild(place: Path, options: dict[str, Any]) -> int:
    from exporter.cli import _progress
    from exporter.report import rebuilt
    from exporter.runs import rebuild
    from exporter.runs.request import again

    listener = functools.partial(_progress.listener, quiet=options["quiet"])
    found = rebuild.run(place, _bundle.trusted(options), again, listener)
    click.echo(rebuilt.render(found, as_json=options["as_json"]), nl=False)
    return 0 if found.same else 1
