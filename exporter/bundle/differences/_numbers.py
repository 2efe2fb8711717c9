"""How far apart two arrays of numbers are."""

from __future__ import annotations

from typing import Any

from exporter.bundle.differences._finding import Finding

CHUNK = 1 << 20  # numbers that are compared at a time


def compare(name: str, kind: str, old: bytes, new: bytes) -> Finding:
    """How far apart the numbers of two members are; a bfloat16 is the upper half of a float32."""
    import numpy as np

    def read(data: bytes) -> Any:
        if kind != "bfloat16":
            return np.frombuffer(data, kind)
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)

    if len(old) != len(new):
        return "differs", f"{name} had {len(old)} bytes, has {len(new)}"
    return "numbers", f"{name}: {apart(read(old), read(new))}"


def apart(old: Any, new: Any) -> str:
    """How many numbers of two arrays of one shape differ, and by how much at most."""
    import numpy as np

    count, furthest = 0, 0.0
    before, after = old.reshape(-1), new.reshape(-1)
    for start in range(0, after.size, CHUNK):
        one, other = (numbers[start : start + CHUNK] for numbers in (before, after))
        unlike = (one != other) & ~((one != one) & (other != other))  # none but NaN is unlike itself
        count += int(unlike.sum())
        one, other = one[unlike], other[unlike]
        if one.dtype.kind in "iu":  # wider than a float64 holds; modulo 2**64 the difference is right
            far = np.maximum(one, other).astype(np.uint64) - np.minimum(one, other).astype(np.uint64)
        else:
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            with np.errstate(invalid="ignore"):
                far = np.abs(one.astype(wide) - other.astype(wide))
        furthest = max(furthest, float(np.nan_to_num(far, nan=np.inf).max(initial=0)))
    return f"{count} of {after.size} numbers, by {furthest:.2g} at most" if count else "signs of zeros, or forms of NaN"
