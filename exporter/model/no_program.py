"""The reason why no shared exported program exists, in a file beside the program's path. Never imports torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from exporter.core.errors import Blame


@dataclass(frozen=True)
class NoProgram:
    """The reason and its known cause; `made` means that torch.export succeeded and only saving failed."""

    reason: str
    made: bool = False
    blame: Blame | None = None

    def write(self, program: Path) -> None:
        """Write the reason in place of the program's file."""
        program.unlink(missing_ok=True)
        _file(program).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, program: Path) -> NoProgram:
        """Return why the program's file is missing."""
        file = _file(program)
        if not file.is_file():
            return cls("the model was not captured")
        found = json.loads(file.read_text())
        blame = found.pop("blame")
        return cls(**found, blame=Blame(**blame) if blame else None)


def _file(program: Path) -> Path:
    return program.with_suffix(".json")
