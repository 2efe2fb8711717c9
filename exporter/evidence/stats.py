"""Statistics of latency samples. Pure functions: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Windows = Sequence[Sequence[float]]
RESAMPLES = 1000


def thinned(windows: Sequence[Sequence[float]], most: int) -> list[list[float]]:
    """Return at most `most` evenly spaced samples of each window, rounded to six significant digits."""
    return [[float(f"{sample:.6g}") for sample in window[:: max(1, -(-len(window) // most))]] for window in windows]


def median(samples: Sequence[float]) -> float:
    """Return the median. Raises ValueError if there are no samples."""
    return percentile(samples, 50)


def percentile(samples: Sequence[float], q: float) -> float:
    """Return the q-th percentile, interpolated linearly. Raises ValueError if there are no samples."""
    if not len(samples):
        raise ValueError("no samples")
    return float(np.percentile(np.asarray(samples, dtype=np.float64), q))


def outliers(samples: Sequence[float], limit: float = 3.5) -> int:
    """Return the number of samples whose modified z-score exceeds `limit`.

    The score is 0.6745 |x - median| / MAD, after Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (1993).
    """
    values = np.asarray(samples, dtype=np.float64)
    distance = np.abs(values - np.median(values))
    mad = float(np.median(distance))
    return int((0.6745 * distance > limit * mad).sum()) if mad else 0


def median_interval(windows: Windows, seed: int = 0) -> tuple[float, float]:
    """Return the 95% confidence interval of the median.

    It is bootstrapped over windows, because calls within a window are not independent. Raises ValueError if there are
    no windows.
    """
    medians = _medians(windows)
    return _interval(np.median(medians[_resample(len(medians), seed)], axis=1))


def ratio(numerator: Windows, denominator: Windows) -> float:
    """Return the ratio of two medians, each taken over window medians. Raises ValueError if there are no windows."""
    return float(np.median(_medians(numerator)) / np.median(_medians(denominator)))


def ratio_interval(numerator: Windows, denominator: Windows, seed: int = 0) -> tuple[float, float]:
    """Return the 95% confidence interval of `ratio`.

    Windows from the same turn of the rotation are drawn in pairs, so that a slowdown of the machine cancels out. If one
    series is longer, its first windows have no partner and are ignored.
    """
    pairs = min(len(numerator), len(denominator))
    a, b = _medians(numerator)[-pairs:], _medians(denominator)[-pairs:]
    chosen = _resample(pairs, seed)
    return _interval(np.median(a[chosen], axis=1) / np.median(b[chosen], axis=1))


def settled(medians: Sequence[float], tolerance: float = 0.05) -> bool:
    """Return whether the last window's median is no faster than the one before, within the relative `tolerance`."""
    return len(medians) >= 2 and medians[-1] >= (1 - tolerance) * medians[-2]


def _medians(windows: Windows) -> NDArray[np.float64]:
    if not windows:
        raise ValueError("no windows")
    return np.array([np.median(window) for window in windows], dtype=np.float64)


def _resample(count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
