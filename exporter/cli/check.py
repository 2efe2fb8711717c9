"""`exporter check BUNDLE`: is it still what it was, and is it right on this machine?"""

from __future__ import annotations

from pathlib import Path

import click

from exporter.cli._bundle import bundle_options


@click.command(name="check", short_help="Check a bundle again, on this machine.")
@bundle_options
def command(
    bundle: Path,
    threads: int | None,
    timeout: float,
    ops_libs: tuple[str, ...],
    allow_cpu_fallback: bool,
    cuda_graphs: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Check BUNDLE's hashes, then parity again from its golden, in Python and, where exporter-run is built, in C++.

    Exit codes: 0 all passed, 1 an artifact was altered or lost parity, 2 there is no bundle with a golden to check by.
    """
    from exporter import environment, recheck, report
    from exporter.cli import _progress

    how = recheck.How(threads or environment.usable_cpus(), timeout, ops_libs, allow_cpu_fallback, cuda_graphs)
    with _progress.listener(quiet=quiet) as listener:
        manifest = recheck.run(bundle, how, listener)
    click.echo(report.render(manifest, "json" if as_json else "table", bundle), nl=False)
    return 0 if all(v.status == "passed" for v in manifest.variants) else 1
