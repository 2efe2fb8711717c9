"""Checks of values that captures leave out."""

from __future__ import annotations

import linecache
import warnings

import pytest
import torch
from torch import nn

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model import capture, flattening, value_checks
from exporter.targets import _tracing

SPEC = TensorSpec("x", "float32", ("batch", 4))
PROMISE = Contract("checks", (SPEC,), (), {"batch": Range(1, 8)})


class Checks(nn.Module):
    """Asserts, raises and warns depending on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert (x > -9).all() and x.max() <= 9, "too large"  # noqa: PT018  # check 1
        assert not torch.isnan(x).any()  # check 2
        if x.min() < -9:  # check 3
            message = f"too small: {x.shape}"
            raise ValueError(message)
        if x.max().item() > 9:  # check 4
            warnings.warn("large", stacklevel=2)
        return x * 2


class Branches(nn.Module):
    """Chooses a computation depending on values, in a check."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert (y := x * 2 if x.sum() > 0 else x * 3) is not None  # noqa: RUF018
        return y


class Mixed(nn.Module):
    """Needs one part of a check to be true, and another to be false."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not (x < -9).any() and (x < 9).all()  # noqa: PT018
        return x


def flat(model: nn.Module) -> flattening.FlatModule:
    return flattening.FlatModule(model, flattening.flatten_inputs(model, {"x": torch.ones(3, 4)})).eval()


def test_checks_pass_in_a_capture() -> None:
    captured = capture.capture(flat(Checks()), (torch.ones(3, 4),), PROMISE)
    run = captured.program.module()
    for value in (1.0, 100.0, -100.0, float("nan")):
        x = torch.full((5, 4), value)
        torch.testing.assert_close(run(x)[0], x * 2, equal_nan=True)
    lines = [int(place.rpartition(":")[2]) for place in captured.checks]
    assert [linecache.getline(__file__, line).rpartition("# ")[2].strip() for line in lines] == [
        f"check {n}" for n in (1, 2, 3, 4)
    ]
    asserted = [node for node in captured.program.graph.nodes if "assert" in str(node.target)]
    assert not asserted


@pytest.mark.parametrize("model", [Branches(), Mixed()])
def test_other_conditions_are_rejected(model: nn.Module) -> None:
    with pytest.raises(ExportError, match="an assert on the values"):
        capture.capture(flat(model), (torch.ones(3, 4),), PROMISE)


def test_truth_is_unchanged_afterwards() -> None:
    usual = torch.Tensor.__bool__, torch.SymBool.__bool__
    with value_checks.passed() as lines:
        assert not torch.zeros(1)
        assert torch.ones(1)
    assert usual == (torch.Tensor.__bool__, torch.SymBool.__bool__)
    assert not lines


def test_the_warning_names_the_lines() -> None:
    assert value_checks.note(()) == ()
    (said,) = value_checks.note(("model.py:3", "model.py:5"))
    assert "(model.py:3, model.py:5)" in said


def test_a_trace_names_its_checks() -> None:
    branches = _tracing.Branches()
    with _tracing.warned(), branches:
        torch.jit.trace(flat(Checks()), (torch.ones(3, 4),), check_trace=False)
    (said,) = branches.notes()
    assert said.startswith("the trace leaves out checks of values (")


class Handled(nn.Module):
    """Chooses what it computes by an exception."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            if x.min() < 0:
                raise ValueError("negative")
            return x * 2
        except ValueError:
            return x * 3


def test_a_check_whose_exception_is_caught_is_a_branch() -> None:
    with pytest.raises(ExportError, match="data-dependent"):
        capture.capture(flat(Handled()), (torch.ones(3, 4),), PROMISE)
    branches = _tracing.Branches()
    with _tracing.warned(), branches:
        torch.jit.trace(flat(Handled()), (torch.ones(3, 4),), check_trace=False)
    (said,) = branches.notes()
    assert said.startswith("a branch depends on values (")
