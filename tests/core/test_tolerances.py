"""Tolerances: how one is chosen, and how the user can replace it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.core import tolerances
from exporter.core.contract_records import PRECISIONS
from exporter.core.tolerances import BY_DTYPE, BY_PRECISION, FLOAT32, FLOAT64, Asked


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
        ({"complex128", "float32"}, "float64"),
        ({"complex64", "float16"}, "float32"),
        ({"int64"}, "float32"),
        (set(), "float32"),
    ],
)
def test_the_highest_precision_among_the_outputs_decides(dtypes: set[str], chosen: str) -> None:
    assert tolerances.of_outputs(dtypes).highest == BY_DTYPE[chosen]


def test_outputs_of_other_dtypes_have_their_own_tolerance() -> None:
    found = tolerances.of_outputs({"float64", "float32", "complex64", "bfloat16", "int64"})
    assert found.others == {name: BY_DTYPE[name] for name in ("float32", "complex64", "bfloat16")}
    assert [found.of(dtype) for dtype in ("float64", "float32", "int64")] == [FLOAT64, FLOAT32, FLOAT64]
    assert tolerances.of_outputs({"float32", "complex64", "int64"}).others == {}, "the same"


def test_the_user_replaces_the_tolerances_of_all_outputs() -> None:
    found = tolerances.of_outputs({"float64", "float32"}, Asked(rtol=0.5))
    assert found.highest == replace(FLOAT64, rtol=0.5)
    assert found.others == {"float32": replace(FLOAT32, rtol=0.5)}
    assert tolerances.of_outputs({"float64", "float32"}, Asked(0.5, 0.5)).others == {}


def test_an_unknown_dtype_has_the_tolerance_of_float32() -> None:
    assert tolerances.of_dtype("bfloat16") == BY_DTYPE["bfloat16"]
    assert tolerances.of_dtype("float8_e5m2") == FLOAT32


def test_the_user_replaces_only_the_given_values() -> None:
    assert Asked().over(FLOAT32) == FLOAT32
    found = Asked(rtol=0.0).over(BY_PRECISION["int8"])
    assert (found.rtol, found.atol, found.min_cosine) == (0.0, FLOAT32.atol, 0.995)
