"""Statistics compared with values computed by hand or by definition."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.evidence import stats


def test_median_and_percentiles() -> None:
    assert stats.median([3.0, 1.0, 2.0]) == 2.0
    assert stats.median([1.0, 2.0]) == 1.5
    assert stats.percentile([0.0, 10.0], 90) == pytest.approx(9.0)
    assert stats.percentile([5.0], 99) == 5.0


@pytest.mark.parametrize("function", [stats.median, lambda s: stats.percentile(s, 90)])
def test_no_samples(function) -> None:
    with pytest.raises(ValueError, match="no samples"):
        function([])


@pytest.mark.parametrize("function", [stats.median_interval, lambda w: stats.ratio(w, w)])
def test_no_windows(function) -> None:
    with pytest.raises(ValueError, match="no windows"):
        function([])


def test_thinned() -> None:
    """Samples are evenly spaced and at most as many as requested; an empty window stays empty."""
    windows = [[float(i) for i in range(10)], [1 / 3], []]
    assert stats.thinned(windows, 5) == [[0.0, 2.0, 4.0, 6.0, 8.0], [0.333333], []]
    assert stats.thinned(windows[:1], 4) == [[0.0, 3.0, 6.0, 9.0]]
    assert stats.thinned(windows[:1], 10) == windows[:1]


def test_outliers() -> None:
    # median 3, MAD 1: 0.6745 * 97 / 1 is far above 3.5; 0.6745 * 5 is not
    assert stats.outliers([1.0, 2.0, 3.0, 4.0, 100.0]) == 1
    assert stats.outliers([1.0, 2.0, 3.0, 4.0, 8.0]) == 0


def test_no_outliers_if_most_samples_are_equal() -> None:
    assert stats.outliers([1.0, 1.0, 1.0, 1.0, 9.0]) == 0


def windows(center: float, count: int = 40, spread: float = 0.1, seed: int = 0) -> list[list[float]]:
    drawn = np.random.default_rng(seed).normal(center, spread, size=(count, 5))
    return [list(map(float, window)) for window in drawn]


def test_median_interval_contains_the_median_and_narrows() -> None:
    low, high = stats.median_interval(windows(10.0))
    assert low < 10.0 < high
    few_low, few_high = stats.median_interval(windows(10.0, count=8))
    assert high - low < few_high - few_low


def test_interval_of_constant_windows_is_a_point() -> None:
    assert stats.median_interval([[2.0]] * 5) == (2.0, 2.0)


def test_intervals_are_deterministic() -> None:
    assert stats.median_interval(windows(10.0)) == stats.median_interval(windows(10.0))
    a, b = windows(10.0), windows(5.0, seed=1)
    assert stats.ratio_interval(a, b) == stats.ratio_interval(a, b)


def test_ratio() -> None:
    assert stats.ratio([[10.0], [20.0], [30.0]], [[5.0]] * 3) == 4.0


def test_ratio_interval_contains_the_ratio() -> None:
    low, high = stats.ratio_interval(windows(10.0), windows(5.0, seed=1))
    assert low < 2.0 < high


def test_common_slowdown_cancels_out() -> None:
    """A machine that becomes three times slower does not change the ratio, because windows are drawn in pairs."""
    drift = [1.0] * 20 + [3.0] * 20
    noise = np.random.default_rng(0).normal(1.0, 0.001, size=(2, 40))
    a = [[10.0 * d * n] for d, n in zip(drift, noise[0], strict=True)]
    b = [[5.0 * d * n] for d, n in zip(drift, noise[1], strict=True)]
    paired_low, paired_high = stats.ratio_interval(a, b)
    shuffled = [*b[20:], *b[:20]]
    low, high = stats.ratio_interval(a, shuffled)
    assert paired_high - paired_low < (high - low) / 2


def test_the_first_windows_of_the_longer_series_are_ignored() -> None:
    assert stats.ratio_interval([[99.0]] * 3 + [[4.0]] * 5, [[2.0]] * 5) == (2.0, 2.0)


def test_settled() -> None:
    assert not stats.settled([10.0])
    assert not stats.settled([10.0, 5.0])
    assert stats.settled([10.0, 9.9])
    assert stats.settled([10.0, 11.0])
