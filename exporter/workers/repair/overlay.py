"""Import files from changed text: Python's loader reads it instead of the file, which stays as it is."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType

_read = SourceFileLoader.get_code


def install(texts: Mapping[str, bytes]) -> None:
    """Import these files, given by their real paths, from these texts from now on. Tracebacks quote the texts too."""
    if not texts:
        return

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        text = texts.get(os.path.realpath(self.path))
        if text is None:
            return _read(self, fullname)
        lines = text.decode("utf-8-sig").splitlines(keepends=True)
        linecache.cache[self.path] = (len(text), None, lines, self.path)
        code: CodeType = compile(text, self.path, "exec", dont_inherit=True)
        return code

    setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010 - mypy refuses to assign to a method
