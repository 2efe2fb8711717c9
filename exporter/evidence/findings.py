"""What the parent process learns from making a golden. Must not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.core.parity_records import CaseRecord, Tolerance

# The one reason for an eager that is not repeatable which leaves its error a measure of rounding.
NOT_TO_THE_BIT = "perhaps a kernel is not deterministic, or it uses the clock, Python's random numbers or hidden state"
STEADY = ("", NOT_TO_THE_BIT)


@dataclass(frozen=True)
class Findings:
    """The result of making a golden: its cases, how repeatable eager is, and which cases were reduced."""

    cases: tuple[CaseRecord, ...]
    reference: str
    tolerance: Tolerance
    eager_rmse: float | None
    unsteady: str  # why a second run of eager returns other values; "" if it is repeatable
    notes: tuple[str, ...]
    # of other dtypes of outputs, and of precisions other than fp32
    tolerances: dict[str, Tolerance] = field(default_factory=dict)
    samples: int = 0  # how many of the last cases are the recipe's own samples
    metric: float | None = None  # of eager's outputs for these samples
