"""The result of a search, whose files are written only if the user asks for it."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path

from exporter.core import filesystem
from exporter.core.errors import UsageError
from exporter.workers.repair.records import Repair


@dataclass(frozen=True)
class Found:
    """The report, and the new content of each file that the patch changes."""

    report: Repair
    files: dict[Path, bytes]
    read: dict[Path, bytes] = field(default_factory=dict)  # what they held when the search began

    def write(self) -> None:
        """Write the files. Raises UsageError, before it writes any, if one of them has changed in the meantime."""
        for path, data in self.read.items():
            if path.read_bytes() != data:
                raise UsageError(f"{path} has changed since it was read", "run the command again")
        for path, data in self.files.items():
            mode = path.stat().st_mode
            try:
                with filesystem.replacing(path) as file:
                    file.write(data)
                path.chmod(stat.S_IMODE(mode))
            except OSError as error:
                raise filesystem.error(error, path) from error
