"""The reasons that compiled packages print instead of raising them, as they do before torch 2.14."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path

from exporter.core import source_lines

MOST = 100_000  # bytes to read
# What the package's runtime prints first, for an operator or for its own checks.
_REASON = re.compile(r"^(?:\[E.*\] Exception in aoti_torch|Error): (.+)$", re.MULTILINE)


class Reasons:
    """Reads what is printed from now on, if the standard error output goes to a file, as in sessions."""

    def __init__(self) -> None:
        self._read = _size()

    def of(self, error: RuntimeError) -> str:
        """Return the reason of a failed call that was printed since the last one, or ""."""
        if self._read is None or source_lines.PACKAGE_FAILED not in source_lines.message(error):
            return ""
        sys.stderr.flush()
        with _output().open("rb") as log:
            log.seek(self._read)
            found = _REASON.search(log.read(MOST).decode(errors="replace"))
        self._read = _size()
        return f"the package's function failed: {found[1]}" if found else ""


def _output() -> Path:
    if sys.__stderr__ is None:
        raise ValueError("there is no standard error output")
    return Path(f"/proc/self/fd/{sys.__stderr__.fileno()}")


def _size() -> int | None:
    """Return the size of the file that the standard error output goes to; None if it is no file that can be read."""
    try:
        found = _output().stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
