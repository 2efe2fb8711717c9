"""Slices of dynamic sizes that reach beyond short inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture
from exporter.model.flattening import FlatModule, flatten_inputs

Compute = Callable[[torch.Tensor], torch.Tensor]
LENGTHS = range(2, 33)


class Slices(nn.Module):
    """Applies a function to sequences of any length."""

    def __init__(self, function: Compute) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def captured(function: Compute) -> capture.Captured:
    module, x = Slices(function), torch.randn(2, 5, 4)
    flat = FlatModule(module, flatten_inputs(module, {"x": x})).eval()
    spec = TensorSpec("x", "float32", ("batch", "length", 4))
    ranges = {"batch": Range(2, 8), "length": Range(LENGTHS[0], LENGTHS[-1])}
    return capture.capture(flat, (x,), Contract("slices", (spec,), (), ranges))


def windowed(x: torch.Tensor) -> torch.Tensor:
    recent = x[:, -8:]
    return functional.scaled_dot_product_attention(x[:, -3:], recent, recent)


def padded(x: torch.Tensor) -> torch.Tensor:
    x = x[:, :12]
    return functional.pad(x, (0, 0, 0, 12 - x.shape[1]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, :8] * 2,
        lambda x: x[:, -8:] * 2,
        lambda x: x[:, -9::2] * 2,
        lambda x: x[:, 1:8] * 2,
        lambda x: x[..., -8:, :2] * 2,
        lambda x: x[:, :8, None, torch.tensor([3, 1])] * 2,
        lambda x: x[0, -8:] + x[1, -8:],
        lambda x: x[:, ::3][:, :4].amax(1),
        lambda x: x[:, : min(8, x.shape[1])] * 2,
        lambda x: x[:, max(0, x.shape[1] - 8) :] * 2,
        windowed,
        padded,
    ],
)
def test_one_program_has_short_and_long_inputs(function: Compute) -> None:
    found = captured(function)
    assert not found.fixed
    assert found.bounds == {}
    program = found.program.module(check_guards=False)
    for length in LENGTHS:
        x = torch.randn(3, length, 4)
        torch.testing.assert_close(program(x), (function(x),), rtol=0, atol=0)


def write(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result[:, :8].add_(1.0)
    return result


def test_a_slice_that_is_written_to_stays_a_view() -> None:
    found = captured(write)
    assert found.bounds["length"].max == 7
    x = torch.randn(3, 6, 4)
    torch.testing.assert_close(found.program.module(check_guards=False)(x), (x + 1,))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[[1, 0], :8] * 2,
        lambda x: x[x[:, 0, 0].argsort(), :8] * 2,
        lambda x: x[x[:, 0, 0] == x[:, 0, 0], :8] * 2,
    ],
)
def test_other_indices_are_left_to_torch(function: Compute) -> None:
    x = torch.randn(2, 5, 4)
    torch.testing.assert_close(captured(function).program.module(check_guards=False)(x), (function(x),))
