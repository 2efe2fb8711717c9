"""`exporter repair MODEL`: find changes to the model's source with which torch.export accepts it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from exporter.cli import _options
from exporter.cli._model import model_options, untimed_job
from exporter.core import source_lines
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

    Exit codes: 0 a repair was proven, or none is needed; 1 none was found, or the model loads but does not run; 2 the
    request is invalid.
    """
    from exporter.core.json_codec import to_json
    from exporter.report import repairs
    from exporter.workers.repair import search

    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        work = Path(folder)
        job = untimed_job("repair", model, device, work, given)
        found = search.run(job, work / "repair.log", _options.steps(quiet), given["timeout"])
        if given["verbose"]:
            click.echo(source_lines.printable((work / "repair.log").read_text(errors="replace")), err=True)
    if write:
        found.write()
    click.echo(to_json(found.report) + "\n" if as_json else repairs.render(found.report, write), nl=False)
    return 1 if found.report.verdict == "refused" else 0
