"""The tolerances for an artifact's outputs, by precision. They are fixed before anything is measured.

The tolerance for float32 covers the error from another order of summation in networks of usual depth. `k` is the
factor on eager's own error up to which the quality counts as the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from exporter.core.parity_records import Tolerance

FLOAT64 = Tolerance(rtol=1e-7, atol=1e-8, k=2.0)
FLOAT32 = Tolerance(rtol=1e-4, atol=1e-5, k=2.0)
FLOAT16 = Tolerance(rtol=1e-2, atol=1e-3, k=3.0)
# By the dtype of an output, the highest precision first. Complex numbers have the tolerance of their parts.
BY_DTYPE: Mapping[str, Tolerance] = {
    "float64": FLOAT64,
    "complex128": FLOAT64,
    "float32": FLOAT32,
    "complex64": FLOAT32,
    "float16": FLOAT16,
    "complex32": FLOAT16,
    "bfloat16": Tolerance(rtol=1.6e-2, atol=1e-2, k=3.0),
}
# By the precision that a float32 model computes in. The baseline is eager in that precision; for int8, in float32.
# fp16w and int8w compute in float32: against float64 with the same stored weights they keep float32's tolerance. The
# cosine limits what storing the weights may cost. A relative error e has the cosine 1 - e^2 / 2: int8 may cost 10%,
# int8w 4.5% and fp16w 1.4%.
BY_PRECISION: Mapping[str, Tolerance] = {
    "tf32": Tolerance(rtol=1e-2, atol=1e-3, k=3.0),
    "fp16": FLOAT16,
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


DEFAULT = Asked()


def of_dtype(dtype: str) -> Tolerance:
    """Return the tolerance for values of this torch dtype; that of float32 for an unknown one."""
    return BY_DTYPE.get(dtype, FLOAT32)


@dataclass(frozen=True)
class OutputTolerances:
    """The tolerances of a model's outputs: the one for the highest precision among them, and those of other dtypes."""

    highest: Tolerance
    others: dict[str, Tolerance] = field(default_factory=dict)

    def of(self, dtype: str) -> Tolerance:
        """Return the tolerance of outputs of this dtype."""
        return self.others.get(dtype, self.highest)

    def __str__(self) -> str:
        """Return `rtol 1e-07, atol 1e-08, rtol 0.0001, atol 1e-05 for float32`."""
        others = ((f" for {dtype}", self.others[dtype]) for dtype in BY_DTYPE if dtype in self.others)
        return ", ".join(f"rtol {one.rtol:g}, atol {one.atol:g}{of}" for of, one in (("", self.highest), *others))

    def without_eager(self) -> OutputTolerances:
        """Return the same tolerances, without what they allow because of eager's own error."""
        others = {dtype: replace(own, k=0.0) for dtype, own in self.others.items()}
        return OutputTolerances(replace(self.highest, k=0.0), others)


def of_outputs(dtypes: Collection[str], asked: Asked = DEFAULT) -> OutputTolerances:
    """Return the tolerances for a model with outputs of these dtypes, with the user's values."""
    own = {dtype: asked.over(tolerance) for dtype, tolerance in BY_DTYPE.items() if dtype in dtypes}
    highest = next(iter(own.values()), asked.over(FLOAT32))
    return OutputTolerances(highest, {dtype: tolerance for dtype, tolerance in own.items() if tolerance != highest})
