"""Artifacts must propagate the NaN and infinity that eager propagates; tensors with lazy bits count as their values."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import Run
from support.manifests import variant

from exporter import open_artifact
from exporter.core import time_limit
from exporter.core.parity_records import CaseRecord, Parity
from exporter.core.records import SessionRecord
from exporter.core.tolerances import FLOAT32
from exporter.evidence import eager, golden, nonfinite
from exporter.evidence.golden import Case, Golden, NonFinite
from exporter.model.tensors import Tensors
from exporter.model.torchscript.interpreter import Interpreter
from exporter.release import gates
from exporter.release.plan import Gates
from exporter.runs import session_checks
from exporter.targets import Loaded
from exporter.workers.session.server import Judge

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.function(*inputs),)


def make(
    function: Callable[..., torch.Tensor], *example: torch.Tensor
) -> tuple[tuple[NonFinite, ...], tuple[str, ...]]:
    module = Function(function)
    names = [f"x{i}" for i in range(len(example))]
    return nonfinite.make(
        example,
        names,
        lambda given, limit_s: eager.attempts(module, given, limit_s),
        lambda data: eager.run(module, data, "cpu"),
    )


def made(function: Callable[..., torch.Tensor], *example: torch.Tensor) -> tuple[NonFinite, ...]:
    return make(function, *example)[0]


def lost(function: Callable[..., torch.Tensor], artifact: Callable[..., torch.Tensor], *example: torch.Tensor) -> list:
    case = Case(CaseRecord(""), example, (), ())
    found = (nonfinite.lost(one, case, lambda x: (artifact(*x),), ["y"]) for one in made(function, *example))
    return list(filter(None, found))


def test_values_that_eager_propagates_are_required() -> None:
    nan, infinity = made(torch.relu, X)
    assert (nan.inputs, nan.names, nan.value) == ((0,), ("x0",), "NaN")
    assert nan.expected[0].tolist() == [[0, 0, 0], [nonfinite.NAN, 0, 0]]
    assert infinity.expected[0].tolist() == [[0, 0, 0], [nonfinite.PLUS, 0, 0]]
    assert made(torch.neg, X)[1].expected[0].tolist() == [[0, 0, 0], [nonfinite.MINUS, 0, 0]]


def test_values_that_eager_removes_must_not_come_back() -> None:
    nan, infinity = made(torch.nan_to_num, X)
    assert (nan.expected[0].tolist(), infinity.expected[0].tolist()) == (nonfinite.FINITE, nonfinite.FINITE)
    assert lost(torch.nan_to_num, torch.nan_to_num, X) == []
    assert lost(torch.nan_to_num, torch.neg, X) == [
        "y[1, 0] is nan when x0[1, 0] is NaN; eager returns finite numbers",
        "y[1, 0] is -inf when x0[1, 0] is infinity; eager returns finite numbers",
    ]


def test_values_that_eager_does_not_propagate_are_not_required() -> None:
    (_, infinity) = made(lambda x: torch.fmax(x, X), X)
    assert infinity.expected[0].tolist() == [[0, 0, 0], [nonfinite.PLUS, 0, 0]]
    (nan, _) = made(lambda x: torch.cat([x[:1].log(), x.nan_to_num()[1:]]), X)
    assert int(nan.expected[0][1, 0]) == 0


def test_the_number_of_results_may_depend_on_the_values() -> None:
    (said, *_) = lost(lambda x: x[~(x < 0.5)], lambda x: x[x >= 0.5], X)
    assert said == "NaN is not propagated: y has another size when x0[1, 0] is NaN"


def test_a_model_may_reject_nonfinite_inputs() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.isnan().any():
            raise ValueError("no NaN")
        return x

    assert [case.value for case in made(picky, X)] == ["infinity"]


def halved(x: torch.Tensor) -> torch.Tensor:
    while bool(x.abs().max() > 1.0):
        try:
            x = x * 0.5
        except Exception:  # a model that swallows exceptions must be stopped too
            continue
    return x


def halved_outside(x: torch.Tensor) -> torch.Tensor:
    """Does the same without an operator in the loop."""
    largest, factor = float(x.abs().max()), 1.0
    while largest > 1.0:
        largest, factor = largest * 0.5, factor * 0.5
    return x * factor


@pytest.mark.parametrize("function", [halved, halved_outside])
def test_a_call_that_does_not_end_is_stopped(
    function: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "LEAST_S", 0.3)
    found, notes = make(function, X * 4)
    assert [case.value for case in found] == ["NaN"]
    assert len(notes) == 1
    assert re.match(r"the model does not return when x0 holds infinity: a call was stopped after \d+ s", notes[0])
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_torchscript_while_loops_are_recognized() -> None:
    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while bool(x.abs().max() > 1.0):
                x = x * 0.5
            return x

    class Counted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = x * 0.5
            return x

    assert Interpreter(torch.jit.script(Loop())).has_while
    assert not Interpreter(torch.jit.script(Counted())).has_while


def test_values_that_float64_does_not_propagate_are_not_required() -> None:
    """Winograd convolution, for example, spreads NaN over a tile."""

    def spreads(x: torch.Tensor) -> torch.Tensor:
        return x if x.dtype == torch.float64 else x + x.sum()

    assert made(spreads, X)[0].expected[0].tolist() == [[0, 0, 0], [nonfinite.NAN, 0, 0]]


def test_every_floating_input_is_tried() -> None:
    found = made(lambda a, b, i: a + b * i, X, X, torch.ones(3, dtype=torch.int64))
    assert [(case.inputs, case.value) for case in found] == [
        ((0,), "NaN"), ((0,), "infinity"), ((1,), "NaN"), ((1,), "infinity"),
    ]  # fmt: skip
    many = made(lambda *x: torch.stack(x), *(X for _ in range(nonfinite.ALONE + 3)))
    assert many[-1].inputs == (8, 9, 10)
    assert len(many) == 2 * (nonfinite.ALONE + 1)


def test_an_artifact_that_propagates_loses_nothing() -> None:
    assert lost(torch.relu, torch.relu, X) == []
    assert lost(lambda x: x.softmax(0).sum(), lambda x: x.softmax(0).sum(), X) == []


def test_an_artifact_that_does_not_propagate_is_reported() -> None:
    def maximum(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, 0.0)  # a compiled max may behave like this

    assert lost(torch.relu, maximum, X) == [
        "NaN is not propagated: y[1, 0] is 0 when x0[1, 0] is NaN; eager returns NaN"
    ]
    assert lost(torch.relu, lambda x: x.clamp(0, 9), X) == [
        "infinity is not propagated: y[1, 0] is 9 when x0[1, 0] is infinity; eager returns infinity"
    ]
    assert lost(torch.sum, lambda x: x.nan_to_num().sum(), X)[0].startswith("NaN is not propagated: y is ")

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("index out of range")

    assert lost(torch.relu, fails, X)[0] == (
        "NaN is not propagated: the artifact fails when x0[1, 0] is NaN: index out of range"
    )


@pytest.mark.parametrize(
    ("wrong", "more"), [((0,), ""), ((0, 2), "; c differs too"), ((0, 1, 2), "; b and c differ too")]
)
def test_all_outputs_that_do_not_propagate_are_named(wrong: tuple[int, ...], more: str) -> None:
    one = made(torch.relu, X)[0]
    given = replace(one, expected=one.expected * 3)

    def run(x: Any) -> tuple[torch.Tensor, ...]:
        return tuple(x[0].nan_to_num() if number in wrong else x[0].relu() for number in range(3))

    said = nonfinite.lost(given, Case(CaseRecord(""), (X,), (), ()), run, ("a", "b", "c"))
    assert said == f"NaN is not propagated: a[1, 0] is 0 when x0[1, 0] is NaN; eager returns NaN{more}"


def test_a_golden_stores_nonfinite_cases_compactly(tmp_path: Path) -> None:
    large = torch.randn(3, 200, 200)
    case = Case(CaseRecord(""), (large,), (large,), (large.double(),))
    plain = Golden((case,), FLOAT32)
    with_them = Golden((case,), FLOAT32, nonfinite=made(lambda x: x / x.sum(), large))
    golden.save(plain, tmp_path / "plain.pt")
    golden.save(with_them, tmp_path / "with.pt")
    assert (tmp_path / "with.pt").stat().st_size - (tmp_path / "plain.pt").stat().st_size < 0.3 * large.nbytes
    again = golden.read(tmp_path / "with.pt")
    assert golden.read(tmp_path / "plain.pt").nonfinite is None
    assert again.nonfinite is not None
    assert again.nonfinite[0].names == ("x0",)
    assert torch.equal(again.nonfinite[0].expected[0], torch.tensor(nonfinite.NAN, dtype=torch.int8))  # all NaN


def test_a_session_reports_lost_values_and_resets_the_state() -> None:
    resets = []
    case = Case(CaseRecord(""), (X,), (X.relu(),), (X.relu().double(),))
    judge = Judge(Golden((case,), FLOAT32, nonfinite=made(torch.relu, X)), ("y",))
    loaded = Loaded(lambda x: (x[0].nan_to_num().relu(),), lambda: "", reset=lambda: resets.append(1))
    found = judge.lost(loaded, "cpu")
    assert found is not None
    assert [said.partition(":")[0] for said in found] == ["NaN is not propagated", "infinity is not propagated"]
    assert len(resets) == 3
    assert Judge(Golden((case,), FLOAT32), ("y",)).lost(loaded, "cpu") is None


def parity(unpropagated: tuple[str, ...] | None) -> Parity:
    return Parity("exact", 0.0, 0.0, 1.0, 1.0, "", unpropagated=unpropagated)


def concluded(found: Sequence[tuple[str, ...] | None]) -> tuple[tuple[str, ...], bool]:
    """Return the notes of a variant with these sessions, and whether the gate passes."""
    sessions = tuple(SessionRecord("python", "passed", parity=parity(one)) for one in found)
    record = session_checks.conclude(variant("trace"), sessions)
    (check,) = gates.check(Gates(propagate_nan=True), gates.measure(record))
    return record.notes, check.passed


def test_lost_values_are_a_note_and_a_gate_can_fail_on_them() -> None:
    said = "NaN is not propagated: y is 0"
    assert concluded([(said,), None]) == ((said,), False)
    assert concluded([(), None]) == ((), True)
    assert concluded([None]) == ((), False)  # what was not measured does not pass


@pytest.mark.parametrize("recipe", ["tiny:mlp", "stateful:conv_streaming"])
def test_a_run_checks_nonfinite_inputs(recipe: str, run: Run, tmp_path: Path) -> None:
    manifest, place = run(recipe)
    spoilt = golden.read(place / "golden.safetensors").nonfinite
    assert spoilt
    assert "NaN" in {one.value for one in spoilt}
    assert [v.parity and v.parity.unpropagated for v in manifest.variants] == [()]


LAZY = {
    "negative": lambda x: torch._neg_view(-x),
    "conjugate": lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
}


@pytest.mark.parametrize("bit", LAZY)
def test_lazy_bits_are_resolved_before_the_call(bit: str, made_bundle: Path, tmp_path: Path) -> None:
    """trace.pt would accept lazy tensors; a package and onnxruntime would read the raw bytes."""
    lazy = LAZY[bit](torch.rand(2, 3))
    assert lazy.is_neg()
    seen: list[Tensors] = []
    artifact = open_artifact(made_bundle / "trace.pt")
    run_it = artifact._run
    artifact._run = lambda inputs: (seen.append(inputs), run_it(inputs))[1]
    ids = torch.ones(2, 3, dtype=torch.int64)
    got = artifact(ids=ids, mask=lazy)["hidden"]
    assert not any(t.is_neg() or t.is_conj() for inputs in seen for t in inputs)
    assert torch.equal(got, run_it((ids, lazy.clone().resolve_neg()))[0])


def test_a_golden_has_no_lazy_bits(tmp_path: Path) -> None:
    """C++ reads the bytes."""
    values = torch.randn(3)
    lazy = torch._neg_view(-values)
    conjugate = torch.complex(values, values).conj()
    golden.save(
        Golden((Case(CaseRecord(""), (lazy,), (conjugate,), (conjugate,)),), FLOAT32), tmp_path / "golden.safetensors"
    )
    case = golden.read(tmp_path / "golden.safetensors").cases[0]
    assert not case.inputs[0].is_neg()
    assert not case.eager[0].is_conj()
    assert torch.equal(case.inputs[0], values)


def test_outputs_with_lazy_bits_are_judged_by_their_values() -> None:
    values = torch.randn(3)
    case = Case(CaseRecord(""), (values,), (values,), (values.double(),))
    (found,) = Judge(Golden((case,), FLOAT32), ("y",)).compare((torch._neg_view(-values),), case)
    assert found.verdict == "exact"
