"""Tolerances: how one is chosen, and how the user can replace it."""

from __future__ import annotations

import pytest

from exporter.core import tolerances
from exporter.core.contract_records import PRECISIONS
from exporter.core.tolerances import BY_DTYPE, BY_PRECISION, FLOAT32, Asked


def test_lower_precision_has_wider_tolerances() -> None:
    order = list(BY_DTYPE.values())
    assert [t.rtol for t in order] == sorted(t.rtol for t in order)
    assert [t.atol for t in order] == sorted(t.atol for t in order)


def test_every_other_precision_has_a_tolerance() -> None:
    assert {"fp32", *BY_PRECISION} == set(PRECISIONS)


@pytest.mark.parametrize(
    ("dtypes", "chosen"),
    [
        ({"float32"}, "float32"),
        ({"bfloat16", "float16", "int64"}, "float16"),
        ({"bfloat16", "float64"}, "float64"),
        ({"int64"}, "float32"),
        (set(), "float32"),
    ],
)
def test_the_highest_precision_among_the_outputs_decides(dtypes: set[str], chosen: str) -> None:
    assert tolerances.of_outputs(dtypes) == BY_DTYPE[chosen]


def test_an_unknown_dtype_has_the_tolerance_of_float32() -> None:
    assert tolerances.of_dtype("bfloat16") == BY_DTYPE["bfloat16"]
    assert tolerances.of_dtype("complex64") == FLOAT32


def test_the_user_replaces_only_the_given_values() -> None:
    assert Asked().over(FLOAT32) == FLOAT32
    found = Asked(rtol=0.0).over(BY_PRECISION["int8"])
    assert (found.rtol, found.atol, found.min_cosine) == (0.0, FLOAT32.atol, 0.995)
