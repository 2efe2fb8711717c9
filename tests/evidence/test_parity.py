"""Parity verdicts, rule by rule (docs/formats.md)."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from exporter.core.parity_records import CaseParity, Tolerance
from exporter.evidence.parity import Limits, OutputParity, compare, limits, summarize

F32 = ("float32", "float32")
TOLERANCE = Tolerance(rtol=1e-4, atol=1e-5, k=2.0)


def judge(got: Any, eager: Any, reference: Any = None, tolerance: Tolerance = TOLERANCE) -> OutputParity:
    y, e = np.asarray(got, np.float32), np.asarray(eager, np.float32)
    r = e.astype(np.float64) if reference is None else np.asarray(reference, np.float64)
    return compare("y", y, e, r, tolerance, F32)


def test_equal_is_exact() -> None:
    found = judge([1.0, 2.0], [1.0, 2.0])
    assert (found.verdict, found.max_abs, found.rmse_ratio, found.reason) == ("exact", 0.0, 1.0, "")
    assert found.cosine == pytest.approx(1.0)


def test_within_tolerance_is_rounding() -> None:
    found = judge([1.00005, 2.0], [1.0, 2.0])
    assert found.verdict == "rounding"
    assert found.max_abs == pytest.approx(5e-5, rel=1e-2)
    assert found.rmse_ratio is None, "eager has no error of its own to compare with"


def test_numbers_that_look_the_same_are_shown_in_full() -> None:
    found = judge([0.13230205], [0.13230195], tolerance=Tolerance(0, 0, k=2.0))
    assert found.reason.startswith("0.132302")
    got, reference = re.findall(r"0\.\d{8,}", found.reason)
    assert float(got) - float(reference) == pytest.approx(1e-7, rel=0.2)


def test_beyond_tolerance_fails_and_says_where() -> None:
    found = judge([[1.0, 2.0], [3.0, 4.5]], [[1.0, 2.0], [3.0, 4.0]])
    assert (found.verdict, found.worst) == ("FAIL", (1, 1))
    assert found.reason == "4.5 where the reference is 4 at [1, 1]"
    assert found.max_rel == pytest.approx(0.125)


def test_beyond_tolerance_but_as_good_as_eager_is_drift() -> None:
    reference = np.linspace(1, 2, 100)
    eager = reference + 1e-3
    found = judge(reference - 1.5e-3, eager, reference)
    assert found.verdict == "drift"
    assert found.rmse_ratio == pytest.approx(1.5, rel=1e-2)


def test_worse_than_k_times_eager_fails() -> None:
    reference = np.linspace(1, 2, 100)
    assert judge(reference - 3e-3, reference + 1e-3, reference).verdict == "FAIL"
    assert judge(reference - 3e-3, reference + 1e-3, reference, Tolerance(1e-4, 1e-5, 4.0)).verdict == "drift"


def test_one_wrong_element_among_many_small_errors_fails() -> None:
    reference = np.ones(1000)
    got = reference.copy()
    got[77] = 1.01
    found = judge(got, reference, reference)
    assert (found.verdict, found.worst) == ("FAIL", (77,))


def test_an_error_of_eager_that_is_no_rounding_does_not_excuse_any_output() -> None:
    failed = judge([0.0] * 6, [3.0] * 6, [1.0] * 6)
    assert failed.verdict == "FAIL"
    assert failed.reason == "0 where the reference is 1 at [0]; eager's error is 2 where the output is 1 (RMS)"
    assert failed.cause == "rounding-decides"
    assert judge([0.0] * 6, [1.0] * 6, [1.0] * 6).cause == ""
    assert judge([0.0] * 6, [1.2] * 6, [1.0] * 6).cause == ""  # far worse than eager
    assert judge([1.2] * 6, [3.0] * 6, [1.0] * 6).verdict == "drift"


@pytest.mark.parametrize(
    ("count", "factor", "verdict"),
    [(40, 1.14, "quantized"), (40, 1.16, "FAIL"), (40, 0.84, "FAIL"), (1, 1.29, "quantized"), (1, 1.31, "FAIL")],
)
def test_a_factor_that_the_cosine_does_not_see_is_limited(count: int, factor: float, verdict: str) -> None:
    reference = np.linspace(1, 2, count)
    found = judge(reference * factor, reference, reference, tolerance=dataclasses.replace(TOLERANCE, min_cosine=0.995))
    assert found.verdict == verdict
    assert found.cosine == pytest.approx(1)
    if (count, factor) == (1, 1.31):
        assert found.reason == "error 0.31 where the output is 1 (RMS), the maximum is 0.3"
        assert found.cause == ""  # another precision would not help


@pytest.mark.parametrize(
    ("got", "verdict"),
    [
        ([1.2, 2.4, -1e9], "FAIL"),
        ([1.1, 2.2, -1e9], "quantized"),
        ([1.0, 2.0, -1.1e9], "quantized"),
        ([1.0, 2.0, -1.16e9], "FAIL"),
    ],
)
def test_extreme_elements_and_the_others_have_limits_of_their_own(got: list[float], verdict: str) -> None:
    coarse = dataclasses.replace(TOLERANCE, min_cosine=0.995)
    assert judge(got, [1.0, 2.0, -1e9], [1.0, 2.0, -1e9], tolerance=coarse).verdict == verdict


@pytest.mark.parametrize(
    ("tolerance", "off", "verdict"),
    [
        (Tolerance(1e-4, 1e-5, 2.0), 1.9e-4, "drift"),
        (Tolerance(1e-4, 1e-5, 2.0), 2.1e-4, "FAIL"),
        (Tolerance(1.6e-2, 1e-2, 3.0), 0.047, "drift"),
        (Tolerance(1.6e-2, 1e-2, 3.0), 0.049, "FAIL"),
        (Tolerance(0.1, 1e-2, 3.0), 0.051, "FAIL"),
    ],
)
def test_the_same_error_as_eagers_is_drift_and_is_reported(tolerance: Tolerance, off: float, verdict: str) -> None:
    """In half precision, a GPU's attention may ignore a mask that masks everything."""
    eager, reference = np.asarray([3.0, 3.0, -1.0]), np.ones(3)
    found = judge(eager + off, eager, reference, tolerance=tolerance)
    wrong = "eager's error is 2 where the output is 1 (RMS)"
    repeated = f"{wrong}, and the artifact returns the same as eager"
    assert found.verdict == verdict
    assert found.reason.endswith(repeated if verdict == "drift" else f"; {wrong}")
    same = judge(eager, eager, reference, tolerance=tolerance)
    assert (same.verdict, same.reason) == ("exact", repeated)
    coarse = judge(reference * 1.4, eager, reference, tolerance=dataclasses.replace(tolerance, min_cosine=0.9))
    assert (coarse.verdict, coarse.reason) == ("quantized", "")
    right = judge(reference, eager, reference, tolerance=tolerance)
    assert (right.verdict, right.reason) == ("rounding", "")
    case = {"case": "example zeros", "seed": 0, "error": "", "outputs": [dataclasses.asdict(same)]}
    assert summarize([case]).reason == f"y at example zeros: {repeated}"


def test_one_wrong_element_of_eagers_excuses_no_other() -> None:
    reference = np.ones(1000)
    eager = reference.copy()
    eager[0] = 60000
    got = eager.copy()
    got[1:] += np.random.default_rng(0).normal(0, 1, 999)
    half = Tolerance(1.6e-2, 1e-2, 3.0)
    assert judge(got, eager, reference, tolerance=half).verdict == "FAIL"
    assert judge(eager * 1.0000001, eager, reference, tolerance=half).verdict == "drift"


def test_an_overflow_of_eagers_is_not_repeated_by_a_finite_value() -> None:
    eager, reference = np.asarray([np.inf, 3.0, 3.0]), np.ones(3)
    found = compare("y", np.asarray([9.0, 3.0, 3.0]), eager, reference, TOLERANCE, ("float32", "float32"))
    assert found.verdict == "FAIL"


@pytest.mark.parametrize("mask", [-1e9, -1e4, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("masked", [1, 20, 200])
def test_masked_scores_do_not_hide_the_errors_of_others(mask: float, masked: int) -> None:
    scores = np.asarray([mask] * masked + [1.0] * 10 + [0.5] * 20)
    coarse = dataclasses.replace(TOLERANCE, min_cosine=0.995)

    def judged(at: int, value: float, tolerance: Tolerance) -> OutputParity:
        got = scores.copy()
        got[at] = value
        return judge(got, scores, tolerance=tolerance)

    wrong = judged(masked, 1.5, TOLERANCE)
    assert (wrong.verdict, wrong.worst) == ("FAIL", (masked,))
    assert judged(masked, 2.5, coarse).verdict == "FAIL"
    assert judged(masked, 1.05, coarse).verdict == "quantized"
    assert judged(0, 0.0, TOLERANCE).verdict == "FAIL"
    assert judged(0, mask * (1 - 1e-6), TOLERANCE).verdict == "rounding"


def test_each_gap_begins_a_group() -> None:
    """Prices are not judged by timestamps, nor one kind of mask by another."""
    rows = np.asarray([[0.5, 5e4, 1.7e9], [0.25, 6e4, 1.6e9]])
    assert judge(rows * [1, 0.8, 1], rows, rows).verdict == "FAIL"
    masks = np.asarray([1.0, 2.0, -1e4, float(np.finfo(np.float32).min)])
    assert judge(masks * [1, 1, 0, 1], masks, masks).verdict == "FAIL"


def test_one_extreme_element_among_very_many() -> None:
    scores = np.ones((200_000, 5))
    scores[7, 3] = -1e9
    wrong = scores.copy()
    wrong[0, 0] = 1.5
    assert judge(wrong, scores, scores).verdict == "FAIL"


def test_quantization_must_keep_the_extreme_elements_extreme() -> None:
    coarse = dataclasses.replace(TOLERANCE, min_cosine=0.995)
    scores = np.asarray([1.0, 2.0, -1e9, -1e9])
    assert judge([1.0, 2.0, -1.0, -1.0], scores, scores, tolerance=coarse).verdict == "FAIL"
    assert judge(scores * 0.999, scores, scores, tolerance=coarse).verdict == "quantized"


def test_what_cancels_out_is_as_good_as_eagers() -> None:
    """On the diagonal of a matrix of squared distances, float32 leaves what it rounds of the terms."""
    exact = np.full((8, 8), 8192.0) - 8192.0 * np.eye(8) + 1e-12
    noise = np.random.default_rng(0).normal(0, 1e-3, (2, 8, 8))
    coarse = dataclasses.replace(TOLERANCE, min_cosine=0.995)
    assert judge(exact + noise[0], exact + noise[1], exact).verdict == "drift"
    assert judge(exact + 100 * noise[0], exact + noise[1], exact, tolerance=coarse).verdict == "quantized"
    assert judge(exact + 10 * noise[0], exact + noise[1], exact).verdict == "FAIL"
    masked = np.full(8, float(np.finfo(np.float32).max))
    masked[:4] = 1
    eager = masked + np.asarray([0.8, -0.8, 0.8, -0.8, 0, 0, 0, 0])
    assert judge(masked * [0, 0, 0, 0, 1, 1, 1, 1], eager, masked, tolerance=coarse).verdict == "FAIL"


def test_few_elements_near_zero_are_judged_by_the_typical_size() -> None:
    """No relative error says anything about them, and neither does their cosine."""
    values = (2.0, -2.0, 2.0, 0.1, 1e6, 3.0, 1.0, np.inf)
    made = limits([TOLERANCE] * 3, [[np.full((1, 1), v), np.ones((3, 3)), np.ones(2, np.int64)] for v in values])
    assert [one.typical for one in made] == [2, 0, 0]

    def judged(got: Any, eager: Any, typical: float, name: str = "y") -> OutputParity:
        e = np.array(eager, np.float32)
        coarse = Limits(1e-4, 1e-5, 2.0, 0.995, typical)
        return compare(name, np.array(got, np.float32), e, e.astype(np.float64), coarse, F32)

    assert judged([[-0.1]], [[0.1]], 0).reason == "cosine -1.0000, the minimum is 0.995"
    found = judged([[-0.1]], [[0.1]], 2.1)
    assert (found.verdict, found.cosine, found.cause) == ("quantized", None, "")
    assert judged([[0.29]], [[0.1]], 2).verdict == "quantized"
    assert judged([[0.31]], [[0.1]], 2).reason == "error 0.21 where the output is 0.1 (RMS), the maximum is 0.03"
    failed = judged([[-0.2]], [[0.1]], 2)
    assert (failed.verdict, failed.cosine, failed.cause) == ("FAIL", -1, "too-coarse")
    assert judged([[0.14]], [[0.1]], 0.05).verdict == "FAIL", "larger than typical: its own size counts"
    assert judged([0.1, -0.1], [0.1, 0.1], 2).verdict == "quantized"
    assert judged([0.1, -0.1], [0.1, 0.1], 1).verdict == "FAIL"
    assert judged([-0.1] * 9, [0.1] * 9, 2).verdict == "FAIL", "not few"
    assert judged([1.05], [1.0], 2).cosine == pytest.approx(1), "passes without the typical size"


def test_a_winner_counts_if_few_elements_are_below_their_typical_size() -> None:
    scores = np.array([[10.0, 10.5]], np.float32)
    found = compare("logits", scores[:, ::-1], scores, scores.astype(float), Limits(1e-4, 1e-5, 2.0, 0.995, 11.0), F32)
    assert (found.verdict, found.reason) == ("FAIL", "rows whose clear winner changed: 1")


def test_squares_that_overflow_are_never_quantized() -> None:
    numbers = np.asarray([1e200, 1.0])
    coarse = dataclasses.replace(TOLERANCE, min_cosine=0.995)
    found = compare("y", numbers * 0.5, numbers, numbers, coarse, ("float64", "float64"))
    assert (found.verdict, found.cosine) == ("FAIL", 0.0)


def test_squares_that_overflow_are_no_drift() -> None:
    eager = np.asarray([1.7e308, 1.0, 1.0])
    found = compare("y", np.asarray([1e308, 1.0, 1.0]), eager, eager * (1 + 1e-12), TOLERANCE, ("float64", "float64"))
    assert found.verdict == "FAIL"


def test_large_numbers_alone_are_not_extreme() -> None:
    large = np.linspace(6000, 9000, 50)
    off = large * (1 + 1e-3)
    assert judge(off, large * (1 + 1e-3), large).verdict == "exact"
    assert judge(off, large * (1 - 1e-3), large).verdict == "drift"


def test_the_worst_element_is_relative_to_its_tolerance() -> None:
    """A large error in a large value weighs less than a small error in a small value."""
    found = judge([1e6 + 50, 0.001], [1e6, 0.0])
    assert found.worst == (1,)
    assert found.max_abs == pytest.approx(50, rel=1e-2)


def test_shape_and_dtype() -> None:
    assert judge([1.0, 2.0], [1.0]).reason == "shape [2], expected [1]"
    assert judge([[1.0]], [1.0]).reason == "shape [1, 1], expected [1]"
    y = np.ones(2, np.float32)
    found = compare("y", y, y, y, TOLERANCE, ("bfloat16", "float32"))
    assert (found.verdict, found.reason) == ("FAIL", "dtype bfloat16, expected float32")


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_integers_are_exact_or_fail(dtype: type) -> None:
    eager = np.array([1, 0, 1], dtype)
    same = compare("y", eager.copy(), eager, eager, TOLERANCE, ("i", "i"))
    assert (same.verdict, same.max_abs) == ("exact", 0.0)
    other = compare("y", np.array([1, 1, 1], dtype), eager, eager, TOLERANCE, ("i", "i"))
    assert (other.verdict, other.worst, other.max_abs) == ("FAIL", (1,), 1.0)
    assert other.reason == "1 of 3 values differ"


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities_must_be_at_the_same_indices(value: float) -> None:
    assert judge([1.0, value], [1.0, value]).verdict == "exact"
    for got, eager in (([1.0, value], [1.0, 2.0]), ([1.0, 2.0], [1.0, value]), ([value, 2.0], [2.0, value])):
        found = judge(got, eager)
        assert found.verdict == "FAIL"
        assert found.reason.startswith("Inf at")


def test_nan_always_fails() -> None:
    assert judge([1.0, np.nan], [1.0, 2.0]).reason == "NaN at [1]"
    assert judge([1.0, np.nan], [1.0, np.nan]).reason == "NaN at [1]: eager itself returns NaN"
    assert judge([1.0, 2.0], [np.nan, 2.0]).reason == "NaN at [0]: eager itself returns NaN"


def test_equal_zeros_pass_with_zero_atol() -> None:
    strict = Tolerance(rtol=1e-4, atol=0.0, k=2.0)
    eager, reference = np.array([0.0, 1.0]), np.array([0.0, 1.0 + 1e-9])
    found = compare("y", np.array([0.0, 1.0 + 1e-8]), eager, reference, strict, ("float32", "float32"))
    assert found.verdict == "rounding"


def test_infinity_of_the_other_sign_fails() -> None:
    assert judge([np.inf], [-np.inf]).verdict == "FAIL"


def test_all_infinite_and_empty_outputs() -> None:
    assert judge([np.inf, np.inf], [np.inf, np.inf]).verdict == "exact"
    assert judge(np.zeros((0, 3)), np.zeros((0, 3))).verdict == "exact"


def test_indices_refer_to_the_whole_array() -> None:
    found = judge([np.inf, 1.0, 9.0], [np.inf, 1.0, 2.0])
    assert found.worst == (2,)


def test_scalars() -> None:
    assert judge(1.0, 1.0).worst == ()
    assert judge(2.0, 1.0).verdict == "FAIL"


def test_cosine_of_zeros() -> None:
    assert judge([0.0, 0.0], [0.0, 0.0]).cosine == 1.0
    assert judge([0.0, 0.0], [1.0, 0.0]).cosine == 0.0


def test_cosine_of_opposite_values() -> None:
    assert judge([-1.0, -2.0], [1.0, 2.0]).cosine == pytest.approx(-1.0)


def case(name: str, *verdicts: str, error: str = "", seed: int = 0, **numbers: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("max_abs", "max_rel", "rmse_ratio", "cosine"))
    outputs = [
        {"output": f"o{i}", "verdict": v, "reason": f"why {i}" if v == "FAIL" else "", "worst": [i], **empty, **numbers}
        for i, v in enumerate(verdicts)
    ]
    return {"case": name, "seed": seed, "error": error, "outputs": outputs}


def test_the_worst_verdict_wins() -> None:
    assert summarize([case("a", "exact", "rounding"), case("b", "drift")]).verdict == "drift"
    found = summarize([case("a", "exact"), case("b", "exact", "FAIL"), case("c", "drift")])
    assert (found.verdict, found.reason) == ("FAIL", "o1 at b: why 1")
    assert found.worst == "o1[1] at b seed 0"


def test_each_number_is_folded_independently() -> None:
    found = summarize(
        [case("a", "exact", max_abs=1.0, cosine=0.9, rmse_ratio=3.0), case("b", "exact", max_abs=2.0, cosine=0.99)]
    )
    assert (found.max_abs, found.cosine, found.rmse_ratio, found.max_rel) == (2.0, 0.9, 3.0, None)


def test_every_output_at_every_case_is_kept() -> None:
    found = summarize([case("a", "exact", "drift", max_abs=2.0, seed=1), case("b", error="boom")])
    assert found.parts == (
        CaseParity("a", 1, "o0", "exact", 2.0),
        CaseParity("a", 1, "o1", "drift", 2.0),
        CaseParity("b", 0, "", "FAIL"),
    )


def test_cases_are_counted_by_name_and_seed() -> None:
    assert summarize([case("a", "exact"), case("a", "exact", seed=1), case("b", "exact", "exact")]).cases == 3


def test_a_case_that_raised_fails_the_whole() -> None:
    found = summarize([case("a", "exact"), case("b", error="boom", seed=4)])
    assert (found.verdict, found.reason, found.worst, found.cases) == ("FAIL", "b: boom", "b seed 4", 2)


def test_no_outputs_fail() -> None:
    assert summarize([]).verdict == "FAIL"
    assert summarize([case("a")]).verdict == "FAIL"
