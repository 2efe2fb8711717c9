"""Records that pass between the parent and its children. Nothing here imports torch, since the parent never does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from exporter.core import tolerances
from exporter.core.contract import Narrowing, specialized
from exporter.core.contract_records import Contract
from exporter.core.parity_records import SizeLimit
from exporter.core.settings import ModelSettings, SizeSettings
from exporter.core.size_range import Sizes
from exporter.model.recipes import Source
from exporter.targets import Options


@dataclass(frozen=True)
class Job(ModelSettings, SizeSettings):
    """The settings of a run that every one of its jobs needs."""

    model: str
    source: Source
    work: Path
    options: Options

    @property
    def state_file(self) -> Path:
        """Return the path of the model's initial state, a file that only models with state have."""
        return self.work / "state.pt"

    @property
    def recording_file(self) -> Path:
        """Return the path of what must be recorded for a model that computes gradients, which few models need."""
        return self.work / "recording"

    @property
    def exported_file(self) -> Path:
        """Return the path of the exported program that all sizes share."""
        return self.work / "exported.pt2"

    def entry_file(self, size: int) -> Path:
        """Return the path of the exported program of one entry."""
        return self.work / f"exported-{size}.pt2"

    def captures(self, found: Contract) -> list[Path]:
        """Return the paths of a contract's exported programs: one, or one for each entry."""
        name = specialized(found)
        return [self.entry_file(size) for size in found.symbols[name].choices] if name else [self.exported_file]


Values = Literal["all", "finite", "usual"]


@dataclass(frozen=True)
class GoldenSettings:
    """How to make the golden: its file, the requested tolerance, and the other precisions to find tolerances for.

    `plan` is that of a job that crashed while it made the golden. `values` are those of the example's further cases:
    all unusual ones, only finite ones, or none.
    """

    path: Path
    tolerance: tolerances.Asked
    precisions: tuple[str, ...] = ()
    plan: tuple[tuple[Sizes, int], ...] = ()  # the sizes and seed of each case
    values: Values = "all"


@dataclass(frozen=True)
class Prepared:
    """The result of preparing a model: its contract, and facts about its weights and its exported program."""

    contract: Contract
    base: dict[str, int]
    capture_sizes: dict[str, int]
    weights: str
    parameters: int
    weight_bytes: int  # of parameters and buffers
    capture_s: float
    warnings: tuple[str, ...] = ()
    limits: tuple[SizeLimit, ...] = ()  # sizes that torch.export fixed or restricted
    ops: tuple[str, ...] = ()  # namespaces of operators outside torch's own in the exported program
    libraries: tuple[str, ...] = ()  # namespaces of known libraries that the model imported when it was called
    points: dict[str, dict[str, int]] = field(default_factory=dict)  # sizes to time, by the golden's case
    origin: str = ""  # source of pretrained weights, as in ModelRecord
    licence: str = ""
    narrowings: tuple[Narrowing, ...] = ()  # ranges of symbols in artifacts made from the exported program
    plan: tuple[tuple[Sizes, int], ...] = ()  # of the golden, as in GoldenSettings
    violations: tuple[Sizes, ...] = ()  # sizes at which the model runs, but the exported program may not hold
