"""Make seeds for the fuzzers from the fixtures of make_fixtures.py: make_seeds.py FIXTURES DIRECTORY."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import torch


class Branches(torch.nn.Module):
    """Sizes, control flow, a list of tensors, an index, and a buffer that calls change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.mean.mul_(0.9).add_(x.mean(0))
        first, second = x.split([1, 3], 1)
        chosen = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.relu(), (x,))
        return chosen[:, None] * x.shape[0] / 3, first, second.repeat(2 * x.shape[0], 1), x[torch.tensor([0, -1])]


def record(archive: Path, name: str) -> bytes:
    """Return the record of that name below the archive's top folder."""
    with zipfile.ZipFile(archive) as file:
        return next(file.read(entry) for entry in file.namelist() if entry.partition("/")[2] == name)


def main(fixtures: Path, seeds: Path) -> None:
    for name in ("archive", "contract", "golden", "graph", "program"):
        (seeds / name).mkdir(parents=True, exist_ok=True)
    for file in ("bare.pt", "custom.pt", "inputs.pt", "model.pt"):
        shutil.copy(fixtures / file, seeds / "archive")
    for file in ("carry.pt", "custom.pt", "model.pt", "stream.pt"):
        (seeds / "contract" / file).write_bytes(record(fixtures / file, "extra/contract.json"))
    (seeds / "contract" / "steps").write_bytes(
        record(fixtures / "model.pt", "extra/contract.json").replace(b'"max": 8', b'"max": 8, "multiple_of": 2')
    )
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Branches(), (torch.randn(3, 4),), dynamic_shapes=dynamic)
    torch.export.save(program, seeds / "program" / "branches.pt2")
    shutil.copy(fixtures / "exported.pt2", seeds / "program")
    for archive in (seeds / "program").iterdir():
        (seeds / "graph" / archive.stem).write_bytes(record(archive, "models/model.json"))
    for file in ("golden", "golden_stream", "inputs"):
        shutil.copy(fixtures / f"{file}.safetensors", seeds / "golden")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
