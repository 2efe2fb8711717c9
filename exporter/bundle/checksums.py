"""`SHA256SUMS`: the hash of every file of a bundle, as coreutils' `sha256sum --check` reads it.

One line a file: 64 hexadecimal digits in lower case, two spaces, its path in the bundle.
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
LIMIT = 1 << 24  # bytes of a text that tells of a bundle's files
NO_LINK = "put the file itself in its place: `cp -rL` copies what links lead to"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n")


def of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opened(path: Path) -> BufferedReader:
    """A file of a bundle, open to be read. No link is followed, and nobody waits for a pipe.

    OSError where it cannot be read; ArtifactError for a link, a folder, a device or a pipe.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise ArtifactError(f"{path.name} is a link, and none is followed in a bundle", NO_LINK) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{path.name} is not a file")
    return os.fdopen(descriptor, "rb")


def of_held(path: Path) -> str:
    """As `of`, of a file of a bundle: see `opened`."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree(folder: Path, known: Mapping[str, str], leave: Collection[str], without: str = "") -> dict[str, str]:
    """The hash of each file below the folder by its path there, but of those to `leave`, and of all in the folder
    `without`; each is read once at most.

    `known` are hashes that need not be computed again. "" stands for a link, or whatever else is no file to be read.
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
    """The hash of a file in the folder as `tree` gives it; None where there is nothing of that name."""
    return _regular(folder / name) if os.path.lexists(folder / name) else None


def _regular(path: Path) -> str:
    try:
        return of_held(path)
    except (OSError, ArtifactError):
        return ""


def text(found: Mapping[str, str]) -> str:
    """The file's text."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))


def read(folder: Path) -> dict[str, str] | None:
    """What `SHA256SUMS` in a folder lists; None where there is none. ArtifactError for one that is broken."""
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
    """A small file. ArtifactError when it is larger than any that exporter writes, or cannot be read."""
    try:
        return bounded(path)
    except OSError as error:
        raise ArtifactError(f"{path.name} cannot be read: {error.strerror}") from error


def bounded(path: Path) -> bytes:
    """A small file of a bundle. Raises what `opened` does, and ArtifactError for one that is too large."""
    with opened(path) as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise ArtifactError(f"{path.name} has more than {LIMIT:,} bytes")
    return data


def differences(listed: Mapping[str, str], found: Mapping[str, str], where: str) -> dict[str, str]:
    """What is wrong with each file that is not as it is listed in the file `where`, in words."""
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
    """A file's name as a terminal may show it."""
    return name if name.isprintable() else ascii(name)
