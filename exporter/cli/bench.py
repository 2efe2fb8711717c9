"""`exporter bench BUNDLE`: how fast is it on this machine?"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from exporter.cli import _bundle, _options
from exporter.cli._goal import chosen, goal_options


@click.command(name="bench", short_help="Time a bundle again, on this machine.")
@_bundle.bundle_options
@_options.time_budget("Seconds of timed calls an artifact and session, on average; at least 5 calls of each count.")
@_options.WAIT_QUIET
@goal_options
def command(bundle: Path, time_budget: float, **options: Any) -> int:
    """Check BUNDLE as `exporter check` does, then time its artifacts side by side, in Python and in C++.

    No model code is needed, so there is no eager: what the others are compared with is the first artifact that passes.

    Exit codes: 0 all passed, 1 a file was altered or parity lost, 2 there is no bundle with a golden to check by.
    """
    manifest = _bundle.recheck(bundle, options, time_budget)
    command = shlex.join(["exporter", *sys.argv[1:]])
    manifest = dataclasses.replace(manifest, command=command, goal=chosen(manifest.goal, options))
    return _bundle.show(manifest, bundle, options)
