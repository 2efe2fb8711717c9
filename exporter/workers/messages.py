"""What passes between the parent and its children. Nothing here needs torch, for the parent has none."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from exporter.core.contract import Narrowing, specialized
from exporter.core.contract_records import Contract
from exporter.core.parity_records import SizeLimit
from exporter.core.settings import ModelSettings, SizeSettings
from exporter.model.recipes import Source
from exporter.targets import Options


@dataclass(frozen=True)
class Job(ModelSettings, SizeSettings):
    """What every job of one run needs to know of it."""

    model: str
    source: Source
    work: Path
    options: Options

    @property
    def state_file(self) -> Path:
        """Where it is written what the model carries from call to call, where it carries anything."""
        return self.work / "state.pt"

    @property
    def exported_file(self) -> Path:
        """Where the shared exported program lies."""
        return self.work / "exported.pt2"

    def entry_file(self, size: int) -> Path:
        """Where the exported program of one entry lies."""
        return self.work / f"exported-{size}.pt2"

    def captures(self, found: Contract) -> list[Path]:
        """Where the exported programs of a contract lie: one, or one for each entry."""
        name = specialized(found)
        return [self.entry_file(size) for size in found.symbols[name].choices] if name else [self.exported_file]


@dataclass(frozen=True)
class Prepared:
    """What preparing a model showed."""

    contract: Contract
    base: dict[str, int]
    capture_sizes: dict[str, int]
    weights: str
    parameters: int
    weight_bytes: int  # of parameters and buffers
    capture_s: float
    warnings: tuple[str, ...] = ()
    limits: tuple[SizeLimit, ...] = ()  # what torch.export made of sizes
    ops: tuple[str, ...] = ()  # namespaces of operators outside torch's own in the exported program
    points: dict[str, dict[str, int]] = field(default_factory=dict)  # what is timed, by the golden's case
    origin: str = ""  # of pretrained weights, as in ModelRecord
    licence: str = ""
    narrowings: tuple[Narrowing, ...] = ()  # what is left of symbols in what comes from the exported program
