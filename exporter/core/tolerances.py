"""The tolerances for an artifact's outputs, by precision. They are fixed before anything is measured.

The tolerance for float32 covers the error from another order of summation in networks of usual depth. `k` is the
factor on eager's own error up to which the quality counts as the same.
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
# By the precision that a float32 model computes in. The baseline is eager in that precision; for int8, in float32.
# fp16w and int8w compute in float32: against float64 with the same stored weights they keep float32's tolerance. The
# cosine limits what storing the weights may cost. A relative error e has the cosine 1 - e^2 / 2: int8 may cost 10%,
# int8w 4.5% and fp16w 1.4%.
BY_PRECISION: Mapping[str, Tolerance] = {
    "tf32": Tolerance(rtol=1e-2, atol=1e-3, k=3.0),
    "fp16": BY_DTYPE["float16"],
    "bf16": BY_DTYPE["bfloat16"],
    "int8": replace(FLOAT32, min_cosine=0.995),
    "fp16w": replace(FLOAT32, min_cosine=0.9999),
    "int8w": replace(FLOAT32, min_cosine=0.999),
}


@dataclass(frozen=True)
class Asked:
    """The user's values, which replace those of the default tolerance; None keeps the default."""

    rtol: float | None = None
    atol: float | None = None

    def over(self, usual: Tolerance) -> Tolerance:
        """Return the default tolerance with the user's values."""
        rtol = usual.rtol if self.rtol is None else self.rtol
        atol = usual.atol if self.atol is None else self.atol
        return replace(usual, rtol=rtol, atol=atol)


def of_dtype(dtype: str) -> Tolerance:
    """Return the tolerance for values of this torch dtype; that of float32 for an unknown one."""
    return BY_DTYPE.get(dtype, FLOAT32)


def of_outputs(dtypes: Collection[str]) -> Tolerance:
    """Return the tolerance for a model with outputs of these dtypes: that of the highest precision among them."""
    return next((tolerance for dtype, tolerance in BY_DTYPE.items() if dtype in dtypes), FLOAT32)
