"""`SHA256SUMS`: the hash of every file of a bundle, as coreutils' `sha256sum --check` reads it.

One line a file: 64 hexadecimal digits in lower case, two spaces, its path in the bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from exporter.errors import ArtifactError

NAME = "SHA256SUMS"
LIMIT = 1 << 24  # bytes of a text that tells of a bundle's files
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)\n")


def of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree(folder: Path, known: Mapping[str, str], leave: Collection[str]) -> dict[str, str]:
    """The hash of each file below the folder by its path there, but of those to `leave`; each is read once at most.

    `known` are hashes that need not be computed again. "" stands for a link, or whatever else is no file to be read.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in _files(folder))
    return {name: known.get(name) or _regular(folder / name) for name in names if name not in leave}


def _files(folder: Path) -> Iterator[Path]:
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    yield Path(entry.path)


def _regular(path: Path) -> str:
    try:
        return of(path) if path.is_file() and not path.is_symlink() else ""
    except OSError:
        return ""


def text(found: Mapping[str, str]) -> str:
    """The file's text."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))


def read(folder: Path) -> dict[str, str] | None:
    """What `SHA256SUMS` in a folder lists; None where there is none. ArtifactError for one that is broken."""
    path = folder / NAME
    if not path.is_file():
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
    """A small file. OSError where it cannot be read; ArtifactError for a device, a pipe, or one that is too large."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # nobody waits for a pipe
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ArtifactError(f"{path.name} is not a file")
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
