"""Inductor's sources, and the names that it makes up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from exporter.bundle.differences._finding import Finding

NAME = re.compile(rb"c[a-z2-7]{51}")  # inductor's names: a hash of what went into the file
_FOLDER = re.compile(rb"[^\s\"']*/(?=<generated>)")
_COMMAND = re.compile(rb"\n{0,2}// (?:Compile|Link) cmd\n// [^\n]*\n?")
_ADDRESS = re.compile(rb" at 0x[0-9a-f]+")


def compare(name: str, old: bytes, new: bytes) -> Iterator[Finding]:
    """Of two sources of a package: their names, where they lay, and the commands that were called with them."""
    before, after = plain(old).splitlines(), plain(new).splitlines()
    if before == after:
        yield "known places", "names, folders, addresses and commands in generated sources"
    else:
        lines = enumerate(zip(before, after, strict=False), 1)
        line = next((number for number, (one, other) in lines if one != other), min(len(before), len(after)) + 1)
        yield "differs", f"{name}, line {line}"


def plain(source: bytes) -> bytes:
    """A source without what is not the same each time."""
    source = NAME.sub(b"<generated>", _ADDRESS.sub(b"", _COMMAND.sub(b"\n", source)))
    return _FOLDER.sub(b"", source).rstrip()
