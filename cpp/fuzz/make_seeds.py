"""Make seeds for the fuzzers from the fixtures of make_fixtures.py: make_seeds.py FIXTURES DIRECTORY."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path


def record(archive: Path, name: str) -> bytes:
    """Return the record of that name below the archive's top folder."""
    with zipfile.ZipFile(archive) as file:
        return next(file.read(entry) for entry in file.namelist() if entry.partition("/")[2] == name)


def main(fixtures: Path, seeds: Path) -> None:
    for name in ("archive", "contract", "golden"):
        (seeds / name).mkdir(parents=True, exist_ok=True)
    for file in ("bare.pt", "custom.pt", "inputs.pt", "model.pt"):
        shutil.copy(fixtures / file, seeds / "archive")
    for file in ("carry.pt", "custom.pt", "model.pt", "stream.pt"):
        (seeds / "contract" / file).write_bytes(record(fixtures / file, "extra/contract.json"))
    (seeds / "contract" / "steps").write_bytes(
        record(fixtures / "model.pt", "extra/contract.json").replace(b'"max": 8', b'"max": 8, "multiple_of": 2')
    )
    for file in ("golden", "golden_stream", "inputs"):
        shutil.copy(fixtures / f"{file}.safetensors", seeds / "golden")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
