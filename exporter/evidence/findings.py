"""What making a golden showed, as the parent hears it. Never torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.core.parity_records import CaseRecord, Tolerance


@dataclass(frozen=True)
class Findings:
    """What making a golden showed: its cases, how eager compares with itself, and which cases were cut down."""

    cases: tuple[CaseRecord, ...]
    reference: str
    tolerance: Tolerance
    eager_rmse: float | None
    unsteady: str  # why eager gives other values at a second run; "" where it is repeatable
    notes: tuple[str, ...]
    tolerances: dict[str, Tolerance] = field(default_factory=dict)  # of other precisions than fp32
    samples: int = 0  # how many of the recipe's own are among the cases, at their end
    metric: float | None = None  # of eager's outputs for them
