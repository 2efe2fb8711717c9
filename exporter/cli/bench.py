"""`exporter bench BUNDLE`: measure latency on this machine."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle, _options
from exporter.cli._goal import chosen, goal_options
from exporter.core.settings import TimingSettings


@click.command(name="bench", short_help="Time a bundle again, on this machine.")
@_bundle.bundle_options
@_options.of(TimingSettings, "time_budget", "wait_quiet")
@goal_options("the bundle's own")
def command(bundle: Path, **options: Any) -> int:
    """Check BUNDLE as `exporter check` does, then time its artifacts side by side, in Python and in C++.

    This needs no model code, so there is no eager row: the baseline is the first artifact that passes.

    Exit codes: 0 every variant passed, 1 a file was altered or parity was lost, 2 the path is not a bundle with a
    golden.
    """
    manifest = _bundle.recheck(bundle, options, timed=True)
    command = shlex.join(["exporter", *sys.argv[1:]])
    manifest = dataclasses.replace(manifest, command=command, goal=chosen(manifest.goal, options))
    return _bundle.show(manifest, bundle, options)
