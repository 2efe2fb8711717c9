"""`SHA256SUMS`: the hash of every file of a bundle, in the format of `sha256sum --check` from coreutils.

Each line has 64 lower-case hexadecimal digits, two spaces, and the path of a file in the bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from io import BufferedReader
from pathlib import Path

from exporter.core.errors import ArtifactError

NAME = "SHA256SUMS"
LIMIT = 1 << 24  # maximum size of a record in bytes
NO_LINK = "replace the link with the file itself: `cp -rL` copies the targets of links"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n")


def of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opened(path: Path) -> BufferedReader:
    """Open a file of a bundle for reading, without following a link or blocking on a pipe.

    Raises OSError if it cannot be read, and ArtifactError for a link, a folder, a device or a pipe.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise ArtifactError(f"{path.name} is a link, and links in a bundle are not followed", NO_LINK) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{path.name} is not a file")
    return os.fdopen(descriptor, "rb")


def of_held(path: Path) -> str:
    """Return the SHA-256 of a file of a bundle, which is opened by `opened`."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree(folder: Path, known: Mapping[str, str], leave: Collection[str], without: str = "") -> dict[str, str]:
    """Hash every file below the folder, except those in `leave` and everything in the subfolder `without`.

    Returns hashes by path relative to the folder, "" for a link or anything else that is not a readable file. Hashes
    in `known` are not computed again.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in _files(folder, folder / without))
    return {name: known.get(name) or _regular(folder / name) for name in names if name not in leave}


def _files(folder: Path, without: Path) -> Iterator[Path]:
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [Path(entry.path)] if Path(entry.path) != without else []
                else:
                    yield Path(entry.path)


def held(folder: Path, name: str) -> str | None:
    """Return the hash of a file in the folder as `tree` does; None if nothing has that name."""
    return _regular(folder / name) if os.path.lexists(folder / name) else None


def _regular(path: Path) -> str:
    try:
        return of_held(path)
    except (OSError, ArtifactError):
        return ""


def text(found: Mapping[str, str]) -> str:
    """Return the text of `SHA256SUMS`."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))


def read(folder: Path) -> dict[str, str] | None:
    """Read `SHA256SUMS` in a folder; None if there is none. Raises ArtifactError if it is malformed."""
    path = folder / NAME
    if not os.path.lexists(path):
        return None
    lines = read_bounded(path).decode(errors="replace").splitlines(keepends=True)
    listed = {}
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line)
        if found is None or found[2] in listed:
            raise ArtifactError(f"line {number} of {NAME} is broken")
        listed[found[2]] = found[1]
    return listed


def read_bounded(path: Path) -> bytes:
    """Read a record. Raises ArtifactError if it cannot be read or is larger than LIMIT."""
    try:
        return bounded(path)
    except OSError as error:
        raise ArtifactError(f"{path.name} cannot be read: {error.strerror}") from error


def bounded(path: Path) -> bytes:
    """Read a record. Raises the errors of `opened`, and ArtifactError if it is larger than LIMIT."""
    with opened(path) as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise ArtifactError(f"{path.name} has more than {LIMIT:,} bytes")
    return data


def differences(listed: Mapping[str, str], found: Mapping[str, str], where: str) -> dict[str, str]:
    """Compare hashes with those listed in the file `where`; return a message for each file that differs."""
    problems = {name: f"{shown(name)} is missing" for name in listed.keys() - found.keys()}
    for name, digest in found.items():
        if name not in listed:
            problems[name] = f"{shown(name)} is not in {where}"
        elif not digest:
            problems[name] = f"{shown(name)} is not a file"
        elif digest != listed[name]:
            problems[name] = f"{shown(name)} does not match {where}"
    return dict(sorted(problems.items()))


def shown(name: str) -> str:
    """Return a file's name in a form that is safe to print."""
    return name if name.isprintable() else ascii(name)
