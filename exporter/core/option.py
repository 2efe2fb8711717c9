"""Define settings once, as metadata of dataclass fields.

The command line, the Python API, release files and their schema, release keys and the commands that reproduce a run
all read this metadata.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from exporter.core.errors import UsageError
from exporter.core.limits import LARGEST

_KEY = "option"
_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


@dataclass(frozen=True)
class Option:
    """The definition of a setting.

    `help` describes it, with its unit. `flag` is the command-line flag if that is not `--the-name`; a negative flag
    follows a slash, as in `--bench/--no-bench`. `minimum` and `maximum` are inclusive bounds, `above` is exclusive. A
    `file` has to exist. `key` is the key in release files if it differs from the name, and None if release files do not
    accept the setting. A setting without `effect` does not change the bundle: a release is not rebuilt for a new value.
    """

    help: str
    flag: str = ""
    metavar: str = ""
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    file: bool = False
    key: str | None = ""
    effect: bool = True

    @property
    def bounds(self) -> str:
        """Describe the allowed values; "" if all are allowed."""
        if self.choices:
            return ", ".join(self.choices)
        if self.above is not None:
            return f"more than {_written(self.above)}"
        if self.minimum is None:
            return ""
        return f"{_written(self.minimum)} {'or more' if self.maximum is None else f'to {_written(self.maximum)}'}"

    def allows(self, value: float) -> bool:
        """Return whether a number is within the bounds."""
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return low <= value <= high and (self.above is None or value > self.above)


def _written(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


class Setting(NamedTuple):
    """A field that is a setting. `kind` is the type of one value: bool, int, float or str."""

    name: str
    option: Option
    kind: type
    default: Any
    multiple: bool  # whether it is a tuple of any length
    makes_default: bool  # whether a function computes the default, which then depends on the machine

    @property
    def flag(self) -> str:
        """Return the command-line flag."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def key(self) -> str | None:
        """Return the key in a release file; None if it has none."""
        return self.name if self.option.key == "" else self.option.key

    def words(self, value: Any) -> list[str]:
        """Return the command-line arguments that set this value; none for the default."""
        if value is None or value == self.default:
            return []
        if self.kind is bool:
            on, _, off = self.flag.partition("/")
            return [on if value else off]
        values = value if self.multiple else (value,)
        return [word for one in values for word in (self.flag, f"{one:g}" if self.kind is float else str(one))]

    def check(self, value: Any) -> None:
        """Raise UsageError for a value that is not allowed."""
        if self.default in (None, "") and value == self.default:
            return
        if self.multiple and (isinstance(value, str) or not isinstance(value, (tuple, list))):
            raise UsageError(f"{self.name} is {value!r}, not a list", f"give [{_WORDS[self.kind]}, …]")
        for one in value if self.multiple else (value,):
            self._check_one(one)

    def _check_one(self, value: Any) -> None:
        allowed = (int, float) if self.kind is float else self.kind
        if not isinstance(value, allowed) or (isinstance(value, bool) and self.kind is not bool):
            raise UsageError(f"{self.name} is {value!r}, not {_WORDS[self.kind]}", f"give {_WORDS[self.kind]}")
        option = self.option
        if isinstance(value, (int, float)):
            if not abs(value) <= LARGEST:
                raise UsageError(f"{self.name} is {value}, not a finite number", f"give {option.bounds or 'another'}")
            wrong = not option.allows(value)
        else:
            wrong = bool(option.choices) and value not in option.choices
        if wrong:
            raise UsageError(f"{self.name} is {value!r}", f"give {option.bounds}")


def option(default: Any, help: str, **how: Any) -> Any:
    """Return a dataclass field that is a setting; `default` may be a factory, and `how` has fields of `Option`."""
    given = {"default_factory": default} if callable(default) else {"default": default}
    return dataclasses.field(**given, metadata={_KEY: Option(help, **how)})


def settings(record: Any) -> Iterator[Setting]:
    """Yield the settings among the fields of a record or a record type."""
    hints = typing.get_type_hints(record if isinstance(record, type) else type(record))
    for field in dataclasses.fields(record):
        if _KEY in field.metadata:
            kind, multiple = _kind(hints[field.name])
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            meaning = _with_choices(field.metadata[_KEY], hints[field.name])
            yield Setting(field.name, meaning, kind, default, multiple, made is not dataclasses.MISSING)


def _with_choices(found: Option, hint: Any) -> Option:
    """Take the choices from the type if that is a Literal."""
    if typing.get_origin(hint) is not typing.Literal:
        return found
    return dataclasses.replace(found, choices=tuple(one for one in typing.get_args(hint) if one))


def _kind(hint: Any) -> tuple[type, bool]:
    """Return the type of one value, and whether the setting has several."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return _kind(args[0])[0], True
    if origin in (typing.Union, types.UnionType):
        return _kind(next(one for one in args if one is not type(None)))
    if origin is typing.Literal:
        return type(args[0]), False
    return hint, False


def pick(kind: type[Any], *records: Any, **others: Any) -> Any:
    """Build a record, with each field from the first of the records that has a field of this name."""
    found = dict(others)
    for field in dataclasses.fields(kind):
        if field.name not in found and (own := next((r for r in records if hasattr(r, field.name)), None)) is not None:
            found[field.name] = getattr(own, field.name)
    return kind(**found)


def command_line(record: Any, *leave_out: str) -> str:
    """Return the command-line options that set a record's settings, without those at their defaults."""
    given = (one.words(getattr(record, one.name)) for one in settings(record) if one.name not in leave_out)
    return shlex.join(word for words in given for word in words)
