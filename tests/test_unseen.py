"""Writes through `.data`, by their lines."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import nn

from exporter import diagnosis, unseen


class Writes(nn.Module):
    """Every form of it."""

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


def test_a_decorated_method_is_its_class_s() -> None:
    assert len(unseen.writes([Decorated])) == 1


def test_a_namesake_s_lines_are_not_a_class_s_own() -> None:
    assert unseen.writes([_namesake()]) == []


def test_a_size_is_not_fixed_by_a_write() -> None:
    warnings = [f"net.py:7: {unseen.SAID}"]
    assert diagnosis.with_place("batch is fixed at 2", warnings) == "batch is fixed at 2"


def test_lines_are_of_writes_alone() -> None:
    lines = [place.rpartition(":") for place in unseen.writes([Writes, Reads, nn.Linear, int])]
    assert [path for path, _, _ in lines] == [__file__] * 3
    assert all("# here" in linecache.getline(__file__, int(line)) for _, _, line in lines)


@pytest.mark.parametrize(
    ("warning", "why"),
    [
        (f"net.py:7: {unseen.SAID}", "no trace and no graph records what is written through .data (net.py:7)"),
        (
            "net.py:7: Converting a tensor to a Python integer might cause the trace to be incorrect",
            "the trace holds a number that it took from a tensor (net.py:7)",
        ),
    ],
)
def test_why_a_trace_does_not_carry_a_state(warning: str, why: str) -> None:
    reason = f"{diagnosis.NOT_CARRIED}: right at the first call, wrong at batch=2 step 2"
    said = diagnosis.with_place(reason, [warning])
    assert said == f"{diagnosis.NOT_CARRIED}, perhaps because {why}: right at the first call, wrong at batch=2 step 2"
    assert diagnosis.with_place(reason, []) == reason


def test_why_an_output_does_not_give_the_state() -> None:
    reason = "depends on values: wrong at batch=2, right at batch=2 zeros; state.s at batch=2 step 8: 0 where …"
    said = diagnosis.with_place(reason, [f"net.py:7: {unseen.SAID}"])
    assert said == f"{reason} (perhaps because no trace and no graph records what is written through .data (net.py:7))"
