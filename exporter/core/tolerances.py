"""How far an artifact's outputs may be from the reference, for each precision, fixed before anything is measured.

In float32 that is what another order of summation costs networks of usual depth. `k` is the factor on eager's own
error that still counts as the same quality.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from exporter.core.parity_records import Tolerance

# By the dtype of an output, the highest precision first.
BY_DTYPE: Mapping[str, Tolerance] = {
    "float64": Tolerance(rtol=1e-7, atol=1e-8, k=2.0),
    "float32": Tolerance(rtol=1e-4, atol=1e-5, k=2.0),
    "float16": Tolerance(rtol=1e-2, atol=1e-3, k=3.0),
    "bfloat16": Tolerance(rtol=1.6e-2, atol=1e-2, k=3.0),
}
FLOAT32 = BY_DTYPE["float32"]
# By what a model in float32 computes in. The reference is eager in that precision; of int8, eager in float32.
BY_PRECISION: Mapping[str, Tolerance] = {
    "tf32": Tolerance(rtol=1e-2, atol=1e-3, k=3.0),
    "fp16": BY_DTYPE["float16"],
    "bf16": BY_DTYPE["bfloat16"],
    "int8": replace(FLOAT32, min_cosine=0.995),
}


@dataclass(frozen=True)
class Asked:
    """What the user asks for in place of the usual tolerance; None keeps it."""

    rtol: float | None = None
    atol: float | None = None

    def over(self, usual: Tolerance) -> Tolerance:
        """The usual tolerance with what was asked for."""
        rtol = usual.rtol if self.rtol is None else self.rtol
        atol = usual.atol if self.atol is None else self.atol
        return replace(usual, rtol=rtol, atol=atol)


def of_dtype(dtype: str) -> Tolerance:
    """The tolerance for values of this torch dtype; float32's for one that is not known."""
    return BY_DTYPE.get(dtype, FLOAT32)


def of_outputs(dtypes: Collection[str]) -> Tolerance:
    """The tolerance for a model whose outputs have these dtypes: that of the highest precision among them."""
    return next((tolerance for dtype, tolerance in BY_DTYPE.items() if dtype in dtypes), FLOAT32)
