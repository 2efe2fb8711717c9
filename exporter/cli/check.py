"""`exporter check BUNDLE`: is it still what it was, and is it right on this machine?"""

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
    help="Build the bundle again in a temporary folder instead, as its manifest says, and compare each file. This runs "
    "the model's code. --json prints what was found of each file.",
)
def command(bundle: Path, rebuild: bool, **options: Any) -> int:
    """Check BUNDLE's hashes and signature, then parity again from its golden, in Python and, where built, in C++.

    Nothing is loaded before SHA256SUMS, bom.cdx.json, provenance.json and the signature are right, and no artifact
    whose hash is wrong.

    With --rebuild, which needs the recipe, the checkpoint and the inputs that provenance.json has the hashes of, each
    file is identical, differs in known places alone (times, temporary paths, generated names), in numbers, or
    otherwise.

    Exit codes: 0 all passed, 1 a file was altered or parity lost, or is built otherwise; 2 there is no bundle with a
    golden to check by (an altered one is none), or it cannot be built again.
    """
    if not rebuild:
        return _bundle.show(_bundle.recheck(bundle, options), bundle, options)
    given = click.get_current_context().get_parameter_source
    if any(given(name) is not ParameterSource.DEFAULT for name in RECORDED):
        raise click.UsageError("--rebuild does all as the bundle's manifest says: leave out other ways to run it")
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
