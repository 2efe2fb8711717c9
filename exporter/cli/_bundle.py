"""What commands that load a BUNDLE share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]
OPTIONS = (
    click.argument("bundle", type=click.Path(path_type=Path)),
    click.option("--threads", type=click.IntRange(1), help="Threads of one call on the CPU.  [default: all cores]"),
    click.option(
        "--timeout",
        type=click.FloatRange(1),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="Limit for one answer.",
    ),
    click.option(
        "--ops-lib",
        "ops_libs",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, resolve_path=True),
        help="Library that registers operators of your own, as at the export; may be repeated.",
    ),
    click.option("--allow-cpu-fallback", is_flag=True, help="Let onnxruntime run on the CPU where CUDA was asked for."),
    click.option("--cuda-graphs", is_flag=True, help="Let onnxruntime capture CUDA graphs, as at the export."),
    click.option("--json", "as_json", is_flag=True, help="Print the manifest with what was found now."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Tracebacks."),
)


def bundle_options(command: Command) -> Command:
    """BUNDLE, how its sessions run, and what is printed."""
    for add in reversed(OPTIONS):
        command = add(command)
    return command
