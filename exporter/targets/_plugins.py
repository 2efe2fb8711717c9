"""Targets of other distributions, found by entry point. Each is checked before use; errors name its distribution."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path

from exporter.core import source_lines
from exporter.core.contract_records import PRECISIONS
from exporter.core.errors import UsageError
from exporter.core.records import EAGER
from exporter.targets._facts import Facts

GROUP = "exporter.targets"
VALUES = {
    "artifact": str,
    "variants": tuple,
    "precisions": tuple,
    "requires": tuple,
    "native": bool,
    "needs_program": bool,
}
FUNCTIONS = ("export", "load", "read_contract")


def points() -> list[EntryPoint]:
    """Return the entry points of all installed distributions."""
    return list(_points_in(tuple((folder, _changed_at(folder)) for folder in sys.path), entry_points))


# Reading the metadata of all distributions takes tens of milliseconds. `find` is in the key because tests replace it.
@functools.lru_cache(maxsize=1)
def _points_in(folders: tuple[tuple[str, int], ...], find: Callable[..., EntryPoints]) -> tuple[EntryPoint, ...]:
    return tuple(find(group=GROUP))


def _changed_at(folder: str) -> int:
    """Return the time at which the names in a folder last changed, in nanoseconds; 0 if there is no folder."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def names() -> set[str]:
    """Return the names of their targets."""
    return {point.name for point in points()}


def distributions(name: str) -> list[str]:
    """Return the names of the distributions that have a target of this name."""
    return [point.dist.name for point in points() if point.name == name and point.dist]


def shipped_by(name: str) -> str:
    """Return the distribution of the target of this name, with its version."""
    return next(_shipped_by(point) for point in points() if point.name == name)


def load(name: str, taken: Collection[str]) -> object:
    """Return the target of this name.

    `taken` are the file names of the built-in targets' artifacts. Raise UsageError if the target cannot be imported, is
    incomplete or clashes with another.
    """
    point, *others = (point for point in points() if point.name == name)
    if others:
        raise _error(point, f"{', '.join(map(_shipped_by, others))} also has a target of that name")
    if not re.fullmatch(r"[A-Za-z][\w-]*", name) or name == EAGER:
        raise _error(point, f"{name!r} is not a valid name for a target")
    try:
        found: object = point.load()
    except (Exception, SystemExit) as error:  # its module may raise anything
        raise _error(point, f"it fails to import: {source_lines.named(error)}") from error
    if problems := list(_problems(found, taken)):
        raise _error(point, "; ".join(problems))
    own = point.value.partition(":")[0].partition(".")[0]
    source_lines.add_libraries((own, *getattr(found, "libraries", ())))
    return found


def clashes(built_in: Collection[str]) -> list[UsageError]:
    """Return an error for each target with the name of a built-in one, which takes precedence."""
    return [_error(point, "exporter has a target of that name") for point in points() if point.name in built_in]


def _problems(target: object, taken: Collection[str]) -> Iterator[str]:
    lacking = [name for name in (*VALUES, *FUNCTIONS) if not hasattr(target, name)]
    if lacking:
        yield f"it lacks {', '.join(lacking)}"
    expected = VALUES | {f.name: type(f.default) for f in fields(Facts) if isinstance(f.default, (tuple, int, str))}
    for name, kind in expected.items():
        value = getattr(target, name, None)
        if value is not None and not isinstance(value, kind):
            yield f"{name} is {type(value).__name__}, not {kind.__name__}"
        elif isinstance(value, tuple) and not all(isinstance(item, str) for item in value):
            yield f"{name} may contain only str"
    for name in FUNCTIONS:
        if not callable(getattr(target, name, str)):
            yield f"{name} is not a function"
    precisions = getattr(target, "precisions", None)
    strange = [one for one in precisions if one not in PRECISIONS] if isinstance(precisions, tuple) else ()
    if strange:
        yield f"precisions has {', '.join(map(repr, strange))}, which exporter does not know"
    artifact = getattr(target, "artifact", None)
    if isinstance(artifact, str) and not re.fullmatch(r"\w[\w-]*(\.[\w-]+)+", artifact):
        yield f"{artifact!r} is not a file name with a suffix"
    elif artifact in taken:
        yield f"{artifact} is the artifact of another target"


def _error(point: EntryPoint, why: str) -> UsageError:
    cause = f"the target {point.name} of {_shipped_by(point)} cannot be used: {why}"
    return UsageError(cause, f"update or remove {point.dist.name if point.dist else 'its package'}")


def _shipped_by(point: EntryPoint) -> str:
    """Return the distribution and its version; the module if it belongs to no distribution."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
