"""`exporter explain MODEL`: report what stops each target from exporting the model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from exporter.cli import _options
from exporter.cli._model import model_options, untimed_job
from exporter.core import source_lines
from exporter.core.settings import SessionSettings


@click.command(name="explain", short_help="Say what stops each target from exporting a model.")
@model_options
@_options.of(
    SessionSettings,
    "timeout",
    default=900.0,
    help="Limit for loading the model, and for each section of the report, in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@_options.QUIET
@click.option("-v", "--verbose", is_flag=True, help="Show what torch printed, and tracebacks.")
def command(model: str, device: str | None, as_json: bool, quiet: bool, verbose: bool, **given: Any) -> None:
    """Report what in MODEL stops each target, without exporting it. MODEL is named as for `exporter export`.

    Covers TracerWarnings and whether they matter, what torch.jit.script cannot read, graph breaks and recompilations,
    what torch.export fixes, operators that ONNX lacks, and operator libraries that C++ must load.

    Exit codes: 0 the report is complete, whatever it says; 1 the model loads but does not run; 2 the request is
    invalid.
    """
    from exporter.core.json_codec import to_json
    from exporter.report import explanation
    from exporter.workers import explain

    with tempfile.TemporaryDirectory(prefix="exporter-") as folder:
        work = Path(folder)
        job = untimed_job("explain", model, device, work, given)
        found = explain.run(job, work / "explain.log", _options.steps(quiet), given["timeout"])
        if verbose:
            click.echo(source_lines.printable((work / "explain.log").read_text(errors="replace")), err=True)
    click.echo(to_json(found) + "\n" if as_json else explanation.render(found), nl=False)
