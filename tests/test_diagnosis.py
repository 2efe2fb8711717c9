"""What the pattern of right and wrong cases says."""

from __future__ import annotations

from typing import Any

import pytest

from exporter import causes, diagnosis
from exporter.records import Contract, Range, TensorSpec


def case(name: str, good: bool, seed: int = 0, error: str = "") -> dict[str, Any]:
    outputs = [] if error else [{"verdict": "rounding" if good else "FAIL"}]
    return {"case": name, "seed": seed, "error": error, "outputs": outputs}


def test_a_size_that_was_fixed() -> None:
    cases = [
        case("batch=1 s=4", False),
        case("batch=2 s=4", True),
        case("batch=2 s=5", True),
        case("batch=3 s=4", False),
    ]
    assert diagnosis.fixed_sizes(cases) == ["batch is fixed at 2"]
    assert diagnosis.value_dependence(cases) == ""


SYMBOLS = {"s": Range(2, 64, multiple_of=2)}
PROMISED = Contract("m", (TensorSpec("x", "float32", ("s",)),), (), SYMBOLS)


def test_what_is_judged_and_what_is_refused() -> None:
    """Inside its contract an artifact may refuse nothing, and outside it has to."""
    refused = {"refused": "x dim 0: s is 5, the contract allows 2 to 64, multiples of 2"}
    cases = [case("batch=1 s=4", True), case("batch=1 s=5", True) | refused]
    assert diagnosis.judged(cases, PROMISED) == cases[:1]
    (taken,) = diagnosis.judged([case("batch=1 s=5", True)], PROMISED)
    assert taken["error"] == "s is 5: its contract does not allow that, and it was not refused"
    (other,) = diagnosis.judged([case("batch=1 s=6", True) | refused], PROMISED)
    assert other["error"] == refused["refused"]
    assert diagnosis.judged([case("batch=1 s=5", False)], None) == [case("batch=1 s=5", False)]


def test_a_rule_that_no_contract_can_say() -> None:
    warning = "torch.export takes s only as 2*n+1 (model.py:3)"
    said = diagnosis.with_place("output at batch=1 s=4: shape [1], expected [2]", [warning])
    assert said.endswith(f"(perhaps because {warning}; a contract says multiples alone: give such an example)")
    assert diagnosis.with_place("output at batch=1: wrong", [warning]) == "output at batch=1: wrong"


def test_a_size_that_an_operator_took_as_a_number() -> None:
    warning = "torch.export fixed 32*ceil(s/32)+96 at 2112 (model.py:3)"
    said = diagnosis.with_place("output at batch=1 s=4096: -0.02 where the reference is 0.02", [warning])
    assert said.endswith(f"0.02 (perhaps because {warning})")
    assert diagnosis.with_place("output at batch=4: wrong", [warning]) == "output at batch=4: wrong"
    assert diagnosis.with_place("s is fixed at 2000", [warning]) == "s is fixed at 2000 by model.py:3"


def test_a_crash_where_a_dimension_was_fixed() -> None:
    """Mamba's package, whose loop over the sequence was unrolled."""
    warning = "torch.export fixed sequence at 14 (mamba.py:260)"
    said = diagnosis.with_place("compile (python) was ended by SIGABRT", ["mamba.py:3: other", warning])
    assert said == f"compile (python) was ended by SIGABRT (perhaps because {warning})"
    assert "whole tensors" in causes.remedy(said, "compile")
    assert diagnosis.with_place("compile (python) was ended by SIGABRT", []).endswith("SIGABRT")


def test_all_wrong_is_no_pattern() -> None:
    cases = [case("batch=1", False), case("batch=2", False, error="no")]
    assert diagnosis.fixed_sizes(cases) == []
    assert diagnosis.value_dependence(cases) == ""


def test_all_right_is_no_pattern() -> None:
    cases = [case("batch=1", True), case("batch=2", True)]
    assert diagnosis.fixed_sizes(cases) == []
    assert diagnosis.value_dependence(cases) == ""


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (case("batch=1 zeros", False), "batch=1 zeros"),
        (case("batch=1", False, seed=1), "batch=1 seed 1"),
        (case("batch=1 large", False, error="cannot"), "batch=1 large"),
    ],
)
def test_one_size_right_and_wrong(bad: dict[str, Any], said: str) -> None:
    cases = [case("batch=1", True), bad, case("batch=2", True)]
    assert diagnosis.fixed_sizes(cases) == []
    assert diagnosis.value_dependence(cases) == f"depends on values: wrong at {said}, right at batch=1"


ITEM = "/m.py:8: Converting a tensor to a Python number"
RNN = "/v/lib/python3.11/site-packages/torch/nn/modules/rnn.py:3: Converting a tensor to a Python boolean"
WARNINGS = ("/m.py:4: Converting a tensor to a Python integer", "/m.py:7: Converting a tensor to a Python boolean")


@pytest.mark.parametrize(
    ("reason", "warnings", "said"),
    [
        ("depends on values: wrong", WARNINGS, "branch depends on values (/m.py:7): wrong"),
        ("depends on values: wrong", WARNINGS[:1], "depends on values: wrong"),
        ("depends on values: wrong", (RNN, *WARNINGS), "branch depends on values (/m.py:7): wrong"),
        ("depends on values: wrong", (ITEM, RNN), "branch depends on values (/m.py:8): wrong"),
        ("depends on values: wrong", (RNN,), f"branch depends on values ({RNN.partition(': ')[0]}): wrong"),
        ("batch is fixed at 2", WARNINGS, "batch is fixed at 2 (perhaps by /m.py:4, /m.py:7)"),
        ("batch is fixed at 2", (), "batch is fixed at 2"),
        ("n is fixed at 2", ("torch.export fixed n at 2 (/m.py:9)",), "n is fixed at 2 by /m.py:9"),
        ("n is fixed at 2", ("torch.export fixed 2*n+1 at 5 (/m.py:9)",), "n is fixed at 2 by /m.py:9"),
        ("n is fixed at 2", ("torch.export fixed m at 2 (/m.py:9)",), "n is fixed at 2"),
        (
            "b is fixed at 2; n is fixed at 7",
            ("torch.export fixed b at 2 (/m.py:9)", "torch.export fixed n at 7 (/m.py:11)"),
            "b is fixed at 2 by /m.py:9; n is fixed at 7 by /m.py:11",
        ),
        ("0.1 where the reference is 0.2", WARNINGS, "0.1 where the reference is 0.2"),
    ],
)
def test_places(reason: str, warnings: tuple[str, ...], said: str) -> None:
    assert diagnosis.with_place(reason, warnings) == said
