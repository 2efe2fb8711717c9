"""Compare two arrays of numbers."""

from __future__ import annotations

from typing import Any

from exporter.bundle.differences._finding import Finding

CHUNK = 1 << 20  # how many numbers to compare at a time


def compare(name: str, kind: str, old: bytes, new: bytes) -> Finding:
    """Compare the numbers of two members; a bfloat16 is read as the upper half of a float32."""
    import numpy as np

    def read(data: bytes) -> Any:
        if kind != "bfloat16":
            return np.frombuffer(data, kind)
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)

    if len(old) != len(new):
        return "differs", f"{name} had {len(old)} bytes, has {len(new)}"
    return "numbers", f"{name}: {apart(read(old), read(new))}"


def weights(name: str, old: bytes, new: bytes) -> Finding:
    """Compare weights of several types, byte by byte."""
    import numpy as np

    if len(old) != len(new):
        return "differs", f"{name} had {len(old)} bytes, has {len(new)}"
    unlike = np.count_nonzero(np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8))
    return "numbers", f"{name}: {unlike} of {len(new)} bytes of weights"


def apart(old: Any, new: Any) -> str:
    """Describe how many numbers of two arrays of the same shape differ, and by at most how much."""
    import numpy as np

    count, furthest = 0, 0.0
    before, after = old.reshape(-1), new.reshape(-1)
    for start in range(0, after.size, CHUNK):
        one, other = (numbers[start : start + CHUNK] for numbers in (before, after))
        unlike = (one != other) & ~((one != one) & (other != other))  # only NaN is unequal to itself
        count += int(unlike.sum())
        one, other = one[unlike], other[unlike]
        if one.dtype.kind in "iu":  # int64 overflows; uint64 wraps correctly
            far = np.maximum(one, other).astype(np.uint64) - np.minimum(one, other).astype(np.uint64)
        else:
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            with np.errstate(invalid="ignore"):
                far = np.abs(one.astype(wide) - other.astype(wide))
        furthest = max(furthest, float(np.nan_to_num(far, nan=np.inf).max(initial=0)))
    if count == 0:
        return "signs of zeros or bit patterns of NaN"
    return f"{count} of {after.size} numbers, by at most {furthest:.2g}"
