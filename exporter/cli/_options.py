"""Options that several commands share, and options made from the fields of records."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import click

from exporter.core.option import Setting, settings

Command = Callable[..., Any]
Option = Callable[[Command], Command]

QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress.")
TRACEBACKS = click.option("-v", "--verbose", is_flag=True, expose_value=False, help="Tracebacks.")


def steps(quiet: bool) -> Callable[[str], None]:
    """Return a function that reports on stderr which step has begun, or nothing if `quiet`."""

    def report(step: str) -> None:
        if not quiet:
            print(f"{step} …", file=sys.stderr, flush=True)

    return report


def finite(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Return the value of an option, or its values. Raises BadParameter for one that is infinite or not a number."""
    for one in value if isinstance(value, tuple) else (value,):
        if one is not None and not math.isfinite(one):
            raise click.BadParameter(f"{one} is not a finite number.", context, parameter)
    return value


def together(*options: Option) -> Option:
    """Combine options into one decorator, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def of(record: type, *names: str, **changes: Any) -> Option:
    """Return options for these settings of a record, or for all of them.

    `changes` are arguments of `click.option` that replace the record's, such as `help` or `default`.
    """
    known = {setting.name: setting for setting in settings(record)}
    return together(*(_option(known[name], changes) for name in names or known))


def _option(setting: Setting, changes: dict[str, Any]) -> Option:
    given: dict[str, Any] = {"help": setting.option.help, "default": setting.default, "show_default": True}
    if setting.option.metavar:
        given["metavar"] = setting.option.metavar
    if setting.multiple:
        given["multiple"] = True
    if setting.kind is bool:
        given["is_flag"] = True
        given["show_default"] = "/" in setting.flag
    else:
        given["type"] = _type(setting)
    if setting.kind is float:
        given["callback"] = finite
    if setting.makes_default or given["default"] == "":  # the help says what it depends on
        given["default"] = None
    if given["default"] in (None, ()) or changes.get("default", ...) is None:
        given["show_default"] = False
    return click.option(setting.flag, setting.name, **given | changes)


def _type(setting: Setting) -> Any:
    option = setting.option
    if option.choices:
        return click.Choice(option.choices)
    if option.file:
        return click.Path(exists=True, dir_okay=False, resolve_path=setting.multiple)
    if setting.kind in (int, float) and option.minimum is not None:
        bounds: Any = click.IntRange if setting.kind is int else click.FloatRange
        return bounds(option.minimum, option.maximum)
    return setting.kind


def given(record: type, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a record from a command's options, without those that are None."""
    return {
        setting.name: options[setting.name]
        for setting in settings(record)
        if setting.name in options and options[setting.name] is not None
    }
