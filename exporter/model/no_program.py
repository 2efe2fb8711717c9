"""Why there is no exported program for all targets to share, in a file beside where it would lie. Never torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class NoProgram:
    """The reason; `made` says that torch.export gave a program, and that only saving it failed."""

    reason: str
    made: bool = False

    def write(self, program: Path) -> None:
        """In the place of a program's file."""
        program.unlink(missing_ok=True)
        _file(program).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, program: Path) -> NoProgram:
        """Why a program's file is not there."""
        file = _file(program)
        return cls(**json.loads(file.read_text())) if file.is_file() else cls("the model was not captured")


def _file(program: Path) -> Path:
    return program.with_suffix(".json")
