"""Options for the goal of the recommendation, shared by the commands that recommend."""

from __future__ import annotations

import dataclasses
from typing import Any

from exporter.cli import _options
from exporter.core.option import settings
from exporter.core.records import Goal


def goal_options(usual: str) -> _options.Option:
    """Return the options; `usual` describes the default goal in the help."""
    name = next(setting for setting in settings(Goal) if setting.name == "name")
    return _options.together(
        _options.of(Goal, "name", default=None, help=f"{name.option.help}  [default: {usual}]"),
        _options.of(Goal, "max_p99_ms", "max_mb", "min_cosine"),
        _options.of(Goal, "needs", default=None),
    )


def least_runs(options: dict[str, Any]) -> int:
    """Return how many calls of each artifact the goal's bounds require."""
    return chosen(Goal(), options).least_runs


def chosen(usual: Goal, options: dict[str, Any]) -> Goal:
    """Return the goal `usual` with the command line's changes."""
    return dataclasses.replace(usual, **_options.given(Goal, options))
