"""Why there is no exported program for all targets to share, in a file beside where it would lie. Never torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from exporter.core.errors import Blame


@dataclass(frozen=True)
class NoProgram:
    """The reason, with its known cause; `made` says that torch.export returned a program and only saving it failed."""

    reason: str
    made: bool = False
    blame: Blame | None = None

    def write(self, program: Path) -> None:
        """In the place of a program's file."""
        program.unlink(missing_ok=True)
        _file(program).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, program: Path) -> NoProgram:
        """Why a program's file is not there."""
        file = _file(program)
        if not file.is_file():
            return cls("the model was not captured")
        found = json.loads(file.read_text())
        blame = found.pop("blame")
        return cls(**found, blame=Blame(**blame) if blame else None)


def _file(program: Path) -> Path:
    return program.with_suffix(".json")
