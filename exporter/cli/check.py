"""`exporter check BUNDLE`: is it still what it was, and is it right on this machine?"""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="check", short_help="Check a bundle again, on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--threads", type=click.IntRange(1), help="Threads of one call on the CPU.  [default: all cores]")
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Limit for one answer.",
)
@click.option(
    "--ops-lib",
    "ops_libs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Library that registers operators of your own, as at the export; may be repeated.",
)
@click.option("--allow-cpu-fallback", is_flag=True, help="Let onnxruntime run on the CPU where CUDA was asked for.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest with what was found now.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Tracebacks.")
def command(
    bundle: Path,
    threads: int | None,
    timeout: float,
    ops_libs: tuple[str, ...],
    allow_cpu_fallback: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Check BUNDLE's hashes, then parity again from its golden, in Python and, where exporter-run is built, in C++.

    Exit codes: 0 all passed, 1 an artifact was altered or lost parity, 2 there is no bundle with a golden to check by.
    """
    del verbose  # read where errors are shown
    from exporter import environment, recheck, report
    from exporter.cli import _progress

    with _progress.listener(quiet=quiet) as listener:
        manifest = recheck.run(
            bundle, threads or environment.usable_cpus(), timeout, listener, ops_libs, allow_cpu_fallback
        )
    click.echo(report.render(manifest, "json" if as_json else "table", bundle), nl=False)
    return 0 if all(v.status == "passed" for v in manifest.variants) else 1
