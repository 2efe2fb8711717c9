"""Finding the lines that write through `.data`."""

from __future__ import annotations

import linecache
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from exporter.core import causes
from exporter.core.parity_records import CaseRecord, Warned
from exporter.evidence import diagnosis
from exporter.model.state import data_writes


class Writes(nn.Module):
    """Every form of such a write."""

    def __init__(self) -> None:
        super().__init__()
        self.s = torch.ones(4)
        self.s.data.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.s.data.mul_(0.5)  # here
        self.s.data = x  # here
        self.s.data[0] += 1  # here
        return x + self.s.data.mul(2)


class Reads(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.data.sum() + x.data


def _namesake() -> type[nn.Module]:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.data + 1

    return Writes


class Decorated(nn.Module):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.s.data = x
        return x


def test_a_decorated_method_belongs_to_its_class() -> None:
    assert len(data_writes.writes([Decorated])) == 1


def test_lines_of_a_class_with_the_same_name_are_not_reported() -> None:
    assert data_writes.writes([_namesake()]) == []


WRITE = Warned(data_writes.SAID, "net.py:7", unrecorded=True)
WHY = "no trace or graph records writes through .data (net.py:7)"


def explain(reason: str, cases: Sequence[tuple[str, str]], *warnings: Warned) -> diagnosis.Diagnosis:
    """Diagnose `cases`: names, each with the output that is wrong there, or ""."""
    checked = [
        diagnosis.CheckedCase(
            CaseRecord.of_text(name), outputs=({"output": wrong, "verdict": "FAIL" if wrong else "exact"},)
        )
        for name, wrong in cases
    ]
    worst = next(case for case in checked if case.fails)
    return diagnosis.explain(reason, checked, worst, diagnosis.Known(warnings))


def test_a_write_does_not_fix_a_size() -> None:
    assert explain("y: wrong", [("batch=2", ""), ("batch=3", "y")], WRITE).reason == "batch is fixed at 2"


def test_only_lines_with_writes_are_reported() -> None:
    lines = [place.rpartition(":") for place in data_writes.writes([Writes, Reads, nn.Linear, int])]
    assert [path for path, _, _ in lines] == [__file__] * 3
    assert all("# here" in linecache.getline(__file__, int(line)) for _, _, line in lines)


@pytest.mark.parametrize(
    ("warning", "why", "cause"),
    [
        (WRITE, WHY, "written-through-data"),
        (
            Warned("Converting a tensor to a Python integer might cause the trace to be incorrect", "net.py:7"),
            "the trace holds a constant that was computed from a tensor (net.py:7)",
            "number-in-a-trace",
        ),
    ],
)
def test_the_reason_why_a_trace_does_not_carry_state(warning: Warned, why: str, cause: str) -> None:
    cases = [("batch=2", ""), ("batch=2 step 2", "y")]
    found = explain("y: wrong", cases, warning)
    pattern = "right at the first call, wrong at batch=2 step 2"
    assert found.reason == f"{diagnosis.NOT_CARRIED}, perhaps because {why}: {pattern}; y: wrong"
    assert found.cause == cause
    assert explain("y: wrong", cases).reason == f"{diagnosis.NOT_CARRIED}: {pattern}; y: wrong"


def test_the_reason_why_an_output_does_not_return_the_state() -> None:
    cases = [("batch=2", ""), ("batch=2 zeros", "state.s"), ("batch=2 step 2", "")]
    found = explain("state.s at batch=2 zeros: 0 where", cases, WRITE)
    assert found.reason.startswith("depends on values: wrong at batch=2 zeros, right at batch=2; state.s at")
    assert found.reason.endswith(f" (perhaps because {WHY})")
    assert "the tensor itself" in causes.named(found.cause).remedy
    assert explain("y: 0 where", [("batch=2", ""), ("batch=2 zeros", "y")], WRITE).reason.endswith("0 where")
