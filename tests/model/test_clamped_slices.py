"""Slices of dynamic sizes that reach beyond short inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.nn import functional

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model import capture, clamped_slices
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


def captured(function: Compute, length: int = 5) -> capture.Captured:
    module, x = Slices(function), torch.randn(2, length, 4)
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


@pytest.mark.parametrize(
    ("function", "bounds"),
    [
        (lambda x: torch.diff(x, n=2, dim=1), Range(2, 4096)),
        (lambda x: torch.cat((x[:, -8:], x[:, :8], x[:, 4:-4]), 1), Range(2, 4096)),
        (lambda x: x[:, : (x.shape[1] - 30) // 4] * 2, Range(2, 29)),
    ],
)
def test_bounds_that_torch_cannot_print(function: Compute, bounds: Range) -> None:
    """torch.export fails with an AssertionError when it words its own error about conditions such as 8/3 <= h."""
    module, x = Slices(function), torch.randn(3, 24, 4)
    flat = FlatModule(module, flatten_inputs(module, {"x": x})).eval()
    spec = TensorSpec("x", "float32", (3, "h", 4))
    found = capture.capture(flat, (x,), Contract("slices", (spec,), (), {"h": Range(1, 4096)}))
    assert (found.fixed, found.bounds) == ((), {"h": bounds})
    program = found.program.module(check_guards=False)
    for length in range(bounds.min, 30):
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


def write_rarely(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result[:, :8].masked_fill_(x[:, :1] > 1e9, 0.0)
    return result


def write_to_a_view(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result[:, :8][..., 1:].unsqueeze(1).clamp_(max=1e9)
    return result


def write_to_the_tensor_afterwards(x: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    first = result[:, :8]
    result.clamp_(max=1e9)
    return first * 2


@pytest.mark.parametrize("function", [write_rarely, write_to_a_view, write_to_the_tensor_afterwards])
def test_a_write_without_an_effect_at_the_example_keeps_the_view_too(function: Compute) -> None:
    assert captured(function).bounds["length"].max == 7


def test_bounds_of_other_sizes_are_left_to_torch() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[:, :8].sum() + x[:, 3 : y.shape[1]].sum(1)

    module, example = Two(), (torch.randn(2, 6, 4), torch.randn(2, 9))
    flat = FlatModule(module, flatten_inputs(module, example)).eval()
    specs = (TensorSpec("x", "float32", (2, "n", 4)), TensorSpec("y", "float32", (2, "k")))
    contract = Contract("two", specs, (), {"n": Range(2, 32), "k": Range(2, 32)})
    try:
        found = capture.capture(flat, example, contract)
    except ExportError:
        return
    program = found.program.module(check_guards=False)
    for n, k in ((12, 5), (12, 9), (6, 9)):
        if found.bounds.get("n", Range(2, 32)).allows(n) and found.bounds.get("k", Range(2, 32)).allows(k):
            x, y = torch.randn(2, n, 4), torch.randn(2, k)
            torch.testing.assert_close(program(x, y), (module(x, y),))


def test_a_bound_of_unknown_sign_is_left_to_torch() -> None:
    size, other = symbolic(12)
    assert clamped_slices._selection(slice(3, size - 6), size, torch.device("cpu")) is None
    assert clamped_slices._selection(slice(None, other), size, torch.device("cpu")) is None
    assert clamped_slices._selection(slice(None, size), size, torch.device("cpu")) is None
    assert clamped_slices._selection(slice(None, 8), size, torch.device("cpu")) is not None


def symbolic(*sizes: int) -> Any:
    """Return a symbolic size with this hint and a range from 2 on, and another one."""
    environment = ShapeEnv()
    return [
        environment.create_symintnode(
            environment.create_symbol(size, ConstantSource(f"s{i}"), DimDynamic.DYNAMIC), hint=size
        )
        for i, size in enumerate((*sizes, 5))
    ]


def looped(x: torch.Tensor) -> torch.Tensor:
    rows = x[:, :8]
    total = torch.zeros_like(x[:, 0])
    for place in range(rows.shape[1]):
        total = total + rows[:, place]
    return total


def test_a_program_that_fixes_more_sizes_is_not_better() -> None:
    found = captured(looped, length=12)
    assert found.bounds["length"].min == 8
    assert not found.fixed


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
