"""Diagnosis from the pattern of right and wrong cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exporter.core import causes
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.parity_records import CaseRecord, FixedSize, SizeLimit, Warned
from exporter.core.size_range import Range
from exporter.evidence import diagnosis
from exporter.evidence.diagnosis import CheckedCase, Known

NOTHING = Known()


def case(name: str, good: bool, seed: int = 0, error: str = "", refused: str = "") -> CheckedCase:
    outputs = () if error else ({"output": "y", "verdict": "rounding" if good else "FAIL"},)
    record = CaseRecord.of_text(f"{name} seed {seed}" if seed else name)
    return CheckedCase(record, error, refused, outputs)


def explain(reason: str, *cases: CheckedCase, known: Known = NOTHING) -> diagnosis.Diagnosis:
    return diagnosis.explain(reason, cases, next(one for one in cases if one.fails), known)


def remedy(found: diagnosis.Diagnosis, target: str = "") -> str:
    return causes.named(found.cause, target, found.words).remedy


def test_fixed_size() -> None:
    cases = [
        case("batch=1 s=4", False),
        case("batch=2 s=4", True),
        case("batch=2 s=5", True),
        case("batch=3 s=4", False),
    ]
    assert diagnosis.fixed_sizes(cases) == (FixedSize("batch", 2),)
    assert diagnosis.value_dependence(cases) == ""
    found = explain("y: wrong", *cases)
    assert (found.reason, found.fixed) == ("batch is fixed at 2", (FixedSize("batch", 2),))
    assert "whole tensors" in remedy(found, "trace")
    assert causes.named(found.cause, "trace", found.words).sentence.startswith("The artifact fixes batch at 2, ")


SYMBOLS = {"s": Range(2, 64, multiple_of=2)}
PROMISED = Contract("m", (TensorSpec("x", "float32", ("s",)),), (), SYMBOLS)


def test_refusals_must_follow_the_contract() -> None:
    """An artifact must accept what its contract allows and refuse everything else."""
    refused = "x dim 0: s is 5, the contract allows 2 to 64, multiples of 2"
    cases = [case("batch=1 s=4", True), case("batch=1 s=5", True, refused=refused)]
    assert diagnosis.judged(cases, PROMISED) == cases[:1]
    (taken,) = diagnosis.judged([case("batch=1 s=5", True)], PROMISED)
    assert taken.error == "s is 5: the contract does not allow this, but it was accepted"
    (other,) = diagnosis.judged([case("batch=1 s=6", True, refused=refused)], PROMISED)
    assert other.error == refused
    assert diagnosis.judged([case("batch=1 s=5", False)], None) == [case("batch=1 s=5", False)]


def test_answers_are_matched_with_the_golden_s_records() -> None:
    answer = [
        {"case": "a", "seed": 1, "error": "", "outputs": [{"verdict": "exact"}]},
        {"case": "a", "seed": 0, "error": "no", "outputs": [], "refused": "b is 3"},
    ]
    golden = [CaseRecord("a", 0, {"b": 3}), CaseRecord("a", 1, {"b": 4}, step=2)]
    first, second = diagnosis.checked(answer, golden)
    assert (first.case, first.fails) == (golden[1], False)
    assert (second.case, second.error, second.refused) == (golden[0], "no", "b is 3")


def test_a_rule_that_no_contract_can_express() -> None:
    limit = SizeLimit("s", "steps", "2*n+1", ("s",), "model.py:3")
    assert str(limit) == "torch.export accepts s only as 2*n+1 (model.py:3)"
    known, wrong = Known(limits=(limit,)), "output at batch=1 s=4: shape [1], expected [2]"
    said = explain(wrong, case("batch=1 s=4", False), known=known).reason
    assert (
        said == f"{wrong} (perhaps because {limit}; contracts express only multiples: use an example size that is one)"
    )
    assert explain("wrong", case("batch=1", False), known=known).reason == "wrong"


def test_a_size_that_became_a_constant() -> None:
    limit = SizeLimit("32*ceil(s/32)+96", "fixed", "2112", ("s",), "model.py:3")
    assert str(limit) == "torch.export fixed 32*ceil(s/32)+96 at 2112 (model.py:3)"
    known = Known(limits=(limit,))
    found = explain("0.02", case("batch=1 s=4096", False), known=known)
    assert found.reason == f"0.02 (perhaps because {limit})"
    assert causes.named(found.cause, "", found.words).sentence.startswith("32*ceil(s/32)+96 became the number 2112, ")
    assert explain("0.02", case("batch=4", False), known=known).reason == "0.02"
    fixed = explain("0.02", case("s=2000", True), case("s=4096", False), known=known)
    assert fixed.reason == "s is fixed at 2000 by model.py:3"


def test_a_fixed_size_is_not_blamed_if_the_example_fails_too() -> None:
    limit = SizeLimit("Min(4, s//2 + 1)", "fixed", "4", ("s",), "model.py:3")
    known = Known(limits=(limit,), example={"batch": 1, "s": 8})
    cases = case("batch=1 s=8", False), case("batch=1 s=3", False)
    assert explain("0.02", *cases, known=known).reason == "0.02"
    assert "fixed" in explain("0.02", case("batch=1 s=8", True, 1), cases[1], known=known).reason


def test_a_fixed_size_that_decides_is_blamed_although_the_example_fails_too(tmp_path: Path) -> None:
    """Happened with position embeddings that are interpolated unless the image is square and of the trained size."""
    file = tmp_path / "model.py"
    file.write_text("if patches == trained and width == height: return table\n")
    limit = SizeLimit("(w//4)*(h//4)", "fixed", "16", ("h", "w"), f"{file}:1")
    known = Known(limits=(limit,), example={"h": 16, "w": 16})
    cases = case("h=4 w=16", False), case("h=16 w=16", False), case("h=17 w=16", True), case("h=16 w=19", True)
    found = explain("5 by 17", *cases, known=known)
    assert found.reason.endswith(f"; 5 by 17 (perhaps because {limit})")
    assert found.cause == "size-compared"
    other = explain("5 by 17", *cases, case("h=20 w=16", True), known=known)
    assert "fixed" not in other.reason


def test_a_failure_at_the_example_is_not_blamed_on_its_sizes() -> None:
    known = Known(example={"batch": 2, "s": 3})
    cases = [case("batch=2 s=3", False, error="boom"), case("batch=1 s=3", True)]
    cases.append(case("batch=1 s=5", False))
    found = explain("boom", *cases, known=known)
    assert found.reason == "depends on sizes: wrong at batch=2 s=3 (the example), right at batch=1 s=3; boom"
    assert "like the example" not in remedy(found, "onnx")
    found = explain("boom", *cases, known=Known(example={"batch": 1, "s": 3}))
    assert found.reason == "depends on sizes: wrong at batch=2 s=3, right at batch=1 s=3; boom"
    assert "like the example" in remedy(found, "onnx")


def test_a_limit_is_blamed_only_for_sizes_that_never_pass() -> None:
    limit = SizeLimit("batch", "range", "2 to 4", ("batch",))
    cases = [case(f"batch=1 width={width}", width != 25) for width in (23, 24, 25)]
    assert "batch only" not in explain("0.02", *cases, known=Known(limits=(limit,))).reason
    others = [case(f"batch={batch} width=24", batch > 1) for batch in (1, 2, 3)]
    assert f"(perhaps because {limit})" in explain("0.02", *others, known=Known(limits=(limit,))).reason


def test_advice_on_istft_is_given_only_for_istft(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("y = torch.istft(z, 16, length=n)\ny = torch.fft.irfft(z, n=n)\n")
    limits = (SizeLimit("2*s", "fixed", "16", ("s",), f"{file}:{line}") for line in (1, 2))
    first, second = (explain("0.02", case("s=9", False), known=Known(limits=(limit,))) for limit in limits)
    assert (first.cause, second.cause) == ("length-of-istft", "size-baked")
    assert "istft" not in remedy(second)


def test_a_crash_is_blamed_on_a_fixed_dimension() -> None:
    """Happened with a package of Mamba, whose loop over the sequence was unrolled."""
    limits = (
        SizeLimit("batch", "range", "1 to 8", ("batch",)),
        SizeLimit("sequence", "fixed", "14", ("sequence",), "mamba.py:260"),
    )
    found = diagnosis.crashed("compile (python) was ended by SIGABRT", limits)
    assert found.reason == (
        "compile (python) was ended by SIGABRT (perhaps because torch.export fixed sequence at 14 (mamba.py:260))"
    )
    assert "whole tensors" in remedy(found, "compile")
    assert diagnosis.crashed("compile (python) was ended by SIGABRT", limits[:1]).reason.endswith("SIGABRT")


def test_no_pattern_if_all_cases_fail() -> None:
    cases = [case("batch=1", False), case("batch=2", False, error="no")]
    assert diagnosis.fixed_sizes(cases) == ()
    assert diagnosis.value_dependence(cases) == ""


def test_no_pattern_if_all_cases_pass() -> None:
    cases = [case("batch=1", True), case("batch=2", True)]
    assert diagnosis.fixed_sizes(cases) == ()
    assert diagnosis.value_dependence(cases) == ""


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (case("batch=1 zeros", False), "batch=1 zeros"),
        (case("batch=1", False, seed=1), "batch=1 seed 1"),
        (case("batch=1 large", False, error="cannot"), "batch=1 large"),
    ],
)
def test_value_dependence_at_one_size(bad: CheckedCase, said: str) -> None:
    cases = [case("batch=1", True), bad, case("batch=2", True)]
    assert diagnosis.fixed_sizes(cases) == ()
    assert diagnosis.value_dependence(cases) == f"wrong at {said}, right at batch=1"
    assert explain("why", *cases).reason == f"depends on values: wrong at {said}, right at batch=1; why"
    assert explain("why", *cases, known=Known(quantized=True)).reason == "why"


def test_sizes_decide_although_some_values_hide_it() -> None:
    """A state that stays zero for zeros is right even where the code takes the wrong side of a branch on the size."""
    wrong = [case("batch=1", True), case("batch=1 step 2", False), case("batch=1", False, seed=1)]
    right = [case(f"batch={batch}", True, seed=seed) for batch in (2, 3) for seed in (0, 1)]
    cases = [*wrong, *right, case("batch=1 zeros", True)]
    assert diagnosis.value_dependence(cases)
    assert diagnosis.size_dependence(cases, 2) == "wrong at batch=1, right at batch=2"
    limit = SizeLimit("batch", "range", "2 to 9", ("batch",))
    found = explain("why", *cases, known=Known((BRANCH,), (limit,)))
    assert found.reason == f"depends on sizes: wrong at batch=1, right at batch=2; why (perhaps because {limit})"
    assert "--size NAME=MIN..MAX" in remedy(found)
    found = explain("why", *cases, known=Known((BRANCH,)))
    assert found.reason.endswith("why (perhaps because a branch drops one side (/m.py:7))")
    for other in (case("batch=1", True, seed=2), case("batch=4", False)):  # other values, and too few of them
        assert diagnosis.size_dependence([*cases, other], 2) == ""


@pytest.mark.parametrize(
    ("steps", "quantized", "said"),
    [
        ((1, 2), False, diagnosis.NOT_CARRIED),
        ((1, 2), True, diagnosis.NOT_CARRIED),
        ((2,), False, diagnosis.NOT_CARRIED),
        ((2,), True, diagnosis.ADDS_UP),
    ],
)
def test_errors_of_int8_that_add_up(steps: tuple[int, ...], quantized: bool, said: str) -> None:
    """A state that is not carried spoils the second call; in int8, a later one may be wrong for another reason."""
    named = [case(f"batch=1 s=4 step {step}", step not in steps) for step in (1, 2)]
    later = [replace(one, case=replace(one.case, step=step)) for step, one in enumerate(named, 1)]
    found = explain("y: wrong", case("batch=1 s=4", True), *later, known=Known(quantized=quantized))
    assert found.reason == f"{said}: right at the first call, wrong at batch=1 s=4 step {steps[0]}; y: wrong"
    unrecorded = Known((Warned("written through .data", "net.py:7", unrecorded=True),), quantized=quantized)
    assert explain("y: wrong", case("batch=1 s=4", True), *later, known=unrecorded).reason.startswith(
        diagnosis.NOT_CARRIED
    )


def test_no_pattern_is_claimed_where_rounding_decides() -> None:
    cases = [case("batch=1 s=4", True), case("batch=2 s=4", False)]
    outputs = ({"output": "y", "verdict": "FAIL", "cause": diagnosis.ROUNDING},)
    found = explain("y: wrong", cases[0], replace(cases[1], outputs=outputs))
    assert (found.reason, found.cause) == ("y: wrong", diagnosis.ROUNDING)
    assert "nearly equal" in remedy(found)
    assert explain("y: wrong", *cases).fixed


def test_zeros_are_no_evidence_for_a_branch() -> None:
    zeros, large = case("batch=2 s=4", True), case("batch=2 s=4 large", False)
    assert diagnosis.value_dependence([zeros, large]) != ""
    for values in ("zeros", "tiny"):
        zeros = replace(zeros, case=replace(zeros.case, values=values))
        assert diagnosis.value_dependence([zeros, large]) == ""


def test_unrepeatable_eager_takes_precedence() -> None:
    cases = [case("batch=1", True), case("batch=2", False)]
    found = explain("why", *cases, known=Known(unsteady="the model draws random numbers"))
    assert found.reason == f"{diagnosis.UNSTEADY}: the model draws random numbers; why"
    assert "repeatable" in remedy(found)


ITEM = Warned("Converting a tensor to a Python number", "/m.py:8")
RNN = Warned("Converting a tensor to a Python boolean", "/v/lib/python3.11/site-packages/torch/nn/modules/rnn.py:3")
INTEGER = Warned("Converting a tensor to a Python integer", "/m.py:4")
BRANCH = Warned("Converting a tensor to a Python boolean", "/m.py:7")


@pytest.mark.parametrize(
    ("warnings", "said"),
    [
        ((INTEGER, BRANCH), "branch depends on values (/m.py:7): "),
        ((INTEGER,), "depends on values: "),
        ((RNN, INTEGER, BRANCH), "branch depends on values (/m.py:7): "),
        ((ITEM, RNN), "branch depends on values (/m.py:8): "),
        ((RNN,), "branch depends on values (torch/nn/modules/rnn.py:3): "),
    ],
)
def test_line_of_a_branch(warnings: tuple[Warned, ...], said: str) -> None:
    found = explain("why", case("n=1", True), case("n=1 zeros", False), known=Known(warnings))
    assert found.reason == f"{said}wrong at n=1 zeros, right at n=1; why"
    assert found.cause == ("branch-on-values" if said.startswith("branch") else "")


@pytest.mark.parametrize(
    ("warnings", "said"),
    [
        ((INTEGER, BRANCH), " (perhaps because a branch drops one side (/m.py:7))"),
        ((RNN, INTEGER), " (perhaps because the trace keeps a number of the example (/m.py:4))"),
        ((RNN,), " (perhaps because a branch drops one side (torch/nn/modules/rnn.py:3))"),
        ((replace(INTEGER, place=""),), ""),
    ],
)
def test_line_of_a_dependence_on_sizes(warnings: tuple[Warned, ...], said: str) -> None:
    cases = [case("n=8", False), case("n=16", True), case("n=15", True)]
    found = explain("why", *cases, known=Known(warnings, example={"n": 16}))
    assert found.reason == f"depends on sizes: wrong at n=8, right at n=16; why{said}"


def fixed(of: str, to: int, line: int, *symbols: str) -> SizeLimit:
    return SizeLimit(of, "fixed", str(to), symbols or (of,), f"/m.py:{line}")


@pytest.mark.parametrize(
    ("warnings", "limits", "said"),
    [
        ((INTEGER, BRANCH), (), "n is fixed at 2 (perhaps by /m.py:4, /m.py:7)"),
        ((), (), "n is fixed at 2"),
        ((BRANCH,), (fixed("n", 2, 9),), "n is fixed at 2 by /m.py:9"),
        ((), (fixed("2*n+1", 5, 9, "n"),), "n is fixed at 2 by /m.py:9"),
        ((), (fixed("m", 2, 9),), "n is fixed at 2"),
    ],
)
def test_line_of_a_fixed_size(warnings: tuple[Warned, ...], limits: tuple[SizeLimit, ...], said: str) -> None:
    found = explain("why", case("n=2", True), case("n=3", False), known=Known(warnings, limits))
    assert found.reason == said


def test_every_fixed_size_is_reported_with_its_line() -> None:
    known = Known(limits=(fixed("b", 2, 9), fixed("n", 7, 11)))
    found = explain("why", case("b=2 n=7", True), case("b=3 n=8", False), known=known)
    assert found.reason == "b is fixed at 2 by /m.py:9; n is fixed at 7 by /m.py:11"


def test_warnings_are_ignored_without_a_pattern() -> None:
    known = Known((INTEGER, BRANCH))
    assert explain("0.1 where the reference is 0.2", case("n=2", False), known=known).reason.endswith("is 0.2")


def test_no_pattern_is_claimed_where_eager_returns_nan() -> None:
    right, wrong = case("batch=1 s=4", True), case("batch=2 s=4", False)
    outputs = ({"output": "y", "verdict": "FAIL", "cause": diagnosis.NAN},)
    found = explain("y: NaN", right, replace(wrong, outputs=outputs))
    assert (found.reason, found.cause) == ("y: NaN", diagnosis.NAN)
    assert "inputs that the model is made for" in remedy(found)
    mixed = explain("y: NaN", right, replace(wrong, outputs=outputs), case("batch=2 s=8", False))
    assert mixed.fixed
