"""`exporter release FILE`: export every model of a release and check its gates."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from exporter.cli import _options
from exporter.cli._model import choose_device
from exporter.core.errors import UsageError

if TYPE_CHECKING:
    from exporter.release.executor import Executor
    from exporter.release.plan import Step


@click.command(name="release", short_help="Export many models from a file, with gates, for a pipeline.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("release.toml"))
@click.option("--init", is_flag=True, help="Write a commented FILE to start from, and do nothing else.")
@click.option("--dry-run", is_flag=True, help="Show the steps, in any --format, without running them.")
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Run only the steps whose names match, such as 'bert/*'; may be repeated.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Keep finished steps whose recipe, weights, options, versions and bundle are unchanged.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of untimed steps that run at the same time; a timed step runs alone.",
)
@click.option(
    "--cluster",
    metavar="ray|HOST:PORT|ray://HOST:PORT",
    help="Run the steps on a Ray cluster. ray: the cluster at RAY_ADDRESS or on this machine, else a new one here.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The directory of the bundles.  [default: the file's out]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "md", "github"]),
    default="table",
    show_default=True,
    help="github: print annotations after the table, and append Markdown to the file that GITHUB_STEP_SUMMARY names.",
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Also write JUnit XML to this file.")
@_options.QUIET
@_options.TRACEBACKS
def command(file: Path, **options: Any) -> int:
    """Export every model of FILE for every target, precision, device and size, and check each against its gates.

    Each combination is a step with its own bundle, which is published when the step is done. Without --resume,
    every step runs again. Paths in FILE are relative to its folder.

    Exit codes: 0 all passed, 1 a variant or a gate failed, 2 FILE cannot be run, 130 interrupted.
    """
    if options["init"]:
        _init(file)
        return 0
    if options["dry_run"] and options["junit"]:
        raise UsageError("--dry-run runs nothing that --junit could report", "remove one; --format json shows the plan")
    named, junit = file, options["junit"] and options["junit"].absolute()
    out = options["out"] and options["out"].absolute()
    file = file.absolute()
    if runner := os.environ.get("EXPORTER_RUN"):
        os.environ["EXPORTER_RUN"] = str(Path(runner).absolute())  # relative to this directory, not to FILE
    with contextlib.chdir(file.parent if file.parent.is_dir() else "."):
        return _release(named, file, out, junit, options)


def _init(file: Path) -> None:
    from exporter.release.file import template

    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(template())
    except OSError as error:
        remedy = "give another path: exporter release --init FILE"
        raise UsageError(f"cannot write {file}: {error.strerror}", remedy) from error
    click.echo(f"wrote {file}: `exporter release --dry-run {file}` shows its steps")


def _release(named: Path, file: Path, out: Path | None, junit: Path | None, options: dict[str, Any]) -> int:
    from exporter.cli import _progress
    from exporter.release import formats, plan, run
    from exporter.release.file import read

    try:
        read_file = read(file, named)
        out = out or Path(read_file.data.get("out", plan.OUT)).resolve()
        steps, warnings = plan.make(read_file, out, options["only"])
    except UsageError as error:
        if options["form"] == "github":
            click.echo(formats.annotated(error, named), nl=False)
        raise
    chosen = [step for step in steps if any(fnmatchcase(step.name, only) for only in options["only"] or ("*",))]
    if not chosen:
        raise UsageError(f"no step matches --only {' '.join(options['only'])}", "`--dry-run` shows their names")
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if options["dry_run"]:
        run.require_writable(chosen, out)
        kept = run.kept(chosen, out) if options["resume"] else set()
        click.echo(formats.plan(chosen, kept, options["form"], named, out), nl=False)
        return 0
    with _progress.listener(quiet=options["quiet"]) as listener, _executor(chosen, options) as executor:
        rows = run.run(steps, chosen, out, options["resume"], executor, listener)
    with contextlib.ExitStack() as last:
        last.callback(click.echo, formats.render(rows, options["form"], named, out), nl=False)  # even on an error
        if options["form"] == "github" and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
            try:
                with Path(summary).open("a", encoding="utf-8") as job:
                    job.write(formats.markdown(rows, named))
            except OSError as error:
                raise UsageError(f"cannot write {summary}: {error.strerror}", "check GITHUB_STEP_SUMMARY") from error
        if junit:
            from exporter.release import junit as report

            report.write(rows, junit)
    return 0 if all(row.passed for row in rows) else 1


def _executor(steps: Sequence[Step], options: dict[str, Any]) -> AbstractContextManager[Executor]:
    """Return what runs the steps. Raises UsageError if it cannot run one of them."""
    if options["cluster"] is None:
        from exporter.release.executor import Local

        for device in {step.request.device for step in steps}:
            choose_device(device)
        return contextlib.nullcontext(Local(options["jobs"]))
    if options["jobs"] > 1:
        remedy = "remove it: a cluster runs as many steps as it has room for"
        raise UsageError("--jobs applies to this machine, not to a cluster", remedy)
    from exporter.release import cluster

    return cluster.join(options["cluster"], steps)
