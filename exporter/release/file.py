"""Read the release file, TOML with a JSON Schema. Every error is reported with its line and key."""

from __future__ import annotations

import difflib
import importlib.resources
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter import targets
from exporter.core.errors import UsageError

Place = tuple[str | int, ...]  # the path to a value: keys, and indices in arrays
_TABLE = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_KEY = re.compile(r"""\s*([\w-]+(?:\s*\.\s*[\w-]+)*|"[^"]*"|'[^']*')\s*=""")


class ReleaseFileError(UsageError):
    """The problems of a release file, each as (line, text)."""

    def __init__(self, file: Path, problems: Sequence[tuple[int, str]], remedy: str = "") -> None:
        super().__init__("\n".join(f"{file}:{line}: {text}" for line, text in problems), remedy)
        self.file, self.problems = file, tuple(problems)

    def __reduce__(self) -> tuple[type[ReleaseFileError], tuple[Any, ...]]:
        return type(self), (self.file, self.problems, self.remedy)


@dataclass(frozen=True)
class ReleaseFile:
    """The contents of a release file and the line of each key."""

    path: Path
    data: dict[str, Any]
    lines: dict[Place, int]

    def line(self, place: Place) -> int:
        """Return the line of a key, or of the nearest table around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def error(self, place: Place, cause: str, remedy: str = "") -> UsageError:
        """Return the error `release.toml:12: models[0].targets: cause`."""
        return ReleaseFileError(self.path, [(self.line(place), _keyed(place, cause))], remedy)

    def located(self, place: Place, text: str) -> str:
        """Return the text, prefixed with the file, the line and the key."""
        return f"{self.path}:{self.line(place)}: {_keyed(place, text)}"


def read(path: Path, named: Path | None = None) -> ReleaseFile:
    """Read the file and check it against the schema. Errors use the path `named` for the file.

    Raises UsageError with all problems, one a line.
    """
    named = named or path
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        remedy = "pass the path of a release file; `exporter release --init` writes one"
        raise UsageError(f"{named} cannot be read: {getattr(error, 'strerror', error)}", remedy) from error
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", where)
        number = int(line[1]) if line else len(text.splitlines())
        raise ReleaseFileError(named, [(number, what)], "it is not valid TOML (https://toml.io)") from error
    except RecursionError as error:
        raise UsageError(f"{named}: too deeply nested", "no valid key is more than four levels deep") from error
    found = ReleaseFile(named, data, _lines(text))
    if problems := sorted(set(_problems(found)), key=lambda problem: found.line(problem[0])):
        raise ReleaseFileError(named, [(found.line(place), _keyed(place, problem)) for place, problem in problems])
    return found


def _keyed(place: Place, text: str) -> str:
    """Return `models[0].targets: text`."""
    keys = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")
    return f"{keys}: {text}" if keys else text


def template() -> str:
    """Return a commented release file to start from."""
    return importlib.resources.files(__package__).joinpath("template.toml").read_text(encoding="utf-8")


def _problems(file: ReleaseFile) -> Iterator[tuple[Place, str]]:
    import jsonschema

    from exporter.release import schema

    form, usual = schema.make(), jsonschema.Draft202012Validator
    whole = usual.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)  # JSON accepts 2.0
    strict: Any = jsonschema.validators.extend(usual, type_checker=whole)  # type: ignore[no-untyped-call]
    strange = dict(_not_finite(file.data, ()))
    for error in strict(form).iter_errors(file.data):
        place = tuple(error.absolute_path)
        if error.validator not in ("additionalProperties", "unevaluatedProperties"):
            if "entries" in place and error.validator == "type":
                yield place[: place.index("entries") + 1], 'must be a list of text, such as ["batch=1,8"]'
            elif place not in strange:
                yield place, error.message
            continue
        inherited = form["$defs"]["settings"]["properties"] if error.validator == "unevaluatedProperties" else {}
        known = [*error.schema["properties"], *inherited]
        for key in error.instance.keys() - known:
            close = difflib.get_close_matches(key, known, n=1)
            yield (*place, key), f"unknown key; {f'did you mean {close[0]}?' if close else 'remove it'}"
    yield from ((place, f"{value} is not a finite number") for place, value in strange.items())
    yield from _unknown_targets(file.data, ())
    models = file.data.get("models")
    for index, model in enumerate(models if isinstance(models, list) else ()):
        yield from _unknown_targets(model, ("models", index))


def _not_finite(value: Any, place: Place) -> Iterator[tuple[Place, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _not_finite(one, (*place, key))


def _unknown_targets(table: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield unknown targets here, so that they are reported together with the violations of the schema."""
    named = table.get("targets") if isinstance(table, dict) else None
    for name in named if isinstance(named, list) else ():
        if not isinstance(name, str) or not name.strip():
            continue
        try:
            targets.parse(name)
        except UsageError as error:
            yield (*place, "targets"), f"{error}; {error.remedy}"


def _lines(text: str) -> dict[Place, int]:
    """Return the line of each table and of each key at the start of a line."""
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}  # number of tables in each array of tables
    table: Place = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = ()
            *outer, last = _parts(header[2])
            for name in outer:
                table = (*table, name)
                table = (*table, counts[table] - 1) if table in counts else table
            table = (*table, last)
            if header[1] == "[[":
                counts[table] = counts.get(table, 0) + 1
                table = (*table, counts[table] - 1)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_parts(key[1])), number)
    return lines


def _parts(name: str) -> list[str]:
    """Split a dotted key into its parts."""
    return [name.strip(" \"'")] if name.strip()[0] in "\"'" else [part.strip() for part in name.split(".")]
