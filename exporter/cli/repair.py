"""`exporter repair MODEL`: find changes to the model's source with which torch.export accepts it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from exporter.cli import _options
from exporter.cli._model import choose_device, choose_source, given_sizes, model_options, model_settings, sweep
from exporter.core import source_lines
from exporter.core.errors import UsageError
from exporter.core.settings import SessionSettings


@click.command(name="repair", short_help="Find a patch with which torch.export accepts a model.")
@model_options
@_options.of(SessionSettings, "timeout", default=900.0, help="Limit for each trial, in seconds.")
@click.option("--write", is_flag=True, help="Apply the patch to the model's files.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@_options.QUIET
@click.option("-v", "--verbose", is_flag=True, help="Show what torch printed, and tracebacks.")
def command(model: str, device: str | None, write: bool, as_json: bool, quiet: bool, **given: Any) -> int:
    """Find changes to MODEL's source, or options, with which torch.export accepts it. MODEL is named as for export.

    Each change is tried on a copy. It is printed, as a diff, only if the model and its exported program return what the
    original returns, at several sizes and values, on both sides of every branch that it rewrites. Installed packages
    are not changed.

    Exit codes: 0 a repair was proven, or none is needed; 1 none was found, or the model does not run; 2 the request is
    invalid.
    """
    from exporter import targets
    from exporter.core import environment
    from exporter.core.json_codec import to_json
    from exporter.report import repairs
    from exporter.workers.messages import Job
    from exporter.workers.repair import search

    source = choose_source(model, given)
    if sweep(given_sizes(given)):
        raise UsageError("repair does not measure time, so each size takes one value", "give one of each")
    options = targets.Options(
        device=choose_device(device), threads=environment.usable_cpus(), ops_libs=given["ops_libs"]
    )
    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        work = Path(folder)
        job = Job(source.label, source, work, options, **model_settings(given))
        found = search.run(job, work / "repair.log", _silent if quiet else _progress, given["timeout"])
        if given["verbose"]:
            click.echo(source_lines.printable((work / "repair.log").read_text(errors="replace")), err=True)
    if write:
        found.write()
    click.echo(to_json(found.report) + "\n" if as_json else repairs.render(found.report, write), nl=False)
    return 1 if found.report.verdict == "refused" else 0


def _progress(step: str) -> None:
    print(f"{step} …", file=sys.stderr, flush=True)


def _silent(step: str) -> None:
    """Report nothing."""
