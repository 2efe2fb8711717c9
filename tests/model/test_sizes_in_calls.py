"""Sizes of the input as arguments that torch.export takes only as constants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture, sizes_in_calls
from exporter.model.flattening import FlatModule, flatten_inputs

Compute = Callable[[torch.Tensor], torch.Tensor]


class Calls(nn.Module):
    """Applies a function to images of any height and width."""

    def __init__(self, function: Compute) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def grid(x: torch.Tensor, align_corners: bool) -> torch.Tensor:
    theta = torch.tensor([[0.8, -0.6, 0.1], [0.6, 0.8, 0.0]]).expand(x.shape[0], 2, 3)
    return functional.affine_grid(theta, list(x.shape), align_corners=align_corners)


def of_weights(x: torch.Tensor) -> torch.Tensor:
    places, weights = torch.arange(2, dtype=torch.int32), torch.tensor([0.5, 2.0])
    counted = places.bincount(weights, x.shape[3]) + torch.bincount(places, weights.double(), minlength=x.shape[3])
    assert counted.dtype == torch.float64
    return counted.to(x.dtype)


@pytest.mark.parametrize("divisor", [1.5, 0.125, 3.0, 12.5])
def test_floor_divisions_by_fractions_of_few_bits_keep_sizes(divisor: float) -> None:
    found = captured(lambda x: x * (x.shape[3] // divisor))
    assert found.fixed == ()
    for width in range(2, 65):
        x = torch.ones(2, 3, 8, width)
        assert found.program.module()(x)[0][0, 0, 0, 0] == width // divisor


def test_other_floor_divisions_by_fractions_fix_the_size() -> None:
    """torch.export captures floor(n / 1.1), which is larger at 11, 22 and 44."""
    (fixed,) = captured(lambda x: x * (x.shape[3] // 1.1)).fixed
    assert (fixed.symbols, "test_sizes_in_calls.py:" in fixed.place) == (("width",), True)
    (fixed,) = captured(lambda x: x * ((x.shape[3] * 0.5) // 0.7)).fixed
    assert fixed.symbols == ("width",)


def captured(function: Compute) -> capture.Captured:
    module, x = Calls(function), torch.randn(2, 3, 8, 10)
    flat = FlatModule(module, flatten_inputs(module, {"x": x})).eval()
    spec = TensorSpec("x", "float32", ("batch", 3, "height", "width"))
    ranges = {"batch": Range(2, 8), "height": Range(2, 64), "width": Range(2, 64)}
    return capture.capture(flat, (x,), Contract("calls", (spec,), (), ranges))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.linspace(-1, 1, x.shape[3]),
        lambda x: x + torch.linspace(start=0.5, end=x.shape[3] - 0.5, steps=x.shape[3], dtype=x.dtype, device=x.device),
        lambda x: x + torch.linspace(0, 100, x.shape[3], dtype=torch.int64),
        lambda x: x + torch.linspace(x.mean(), 1.0, x.shape[3]),
        lambda x: grid(x, align_corners=False),
        lambda x: grid(x, align_corners=True),
        lambda x: functional.avg_pool2d(x, x.shape[2:]),
        lambda x: functional.avg_pool2d(x, kernel_size=x.size()[2:], stride=1, padding=0),
        lambda x: functional.max_pool2d(x, x.shape[-2:]),
        lambda x: functional.max_pool1d(x[:, :, 0], x.shape[3]),
        lambda x: functional.max_pool1d(x.flatten(2), x.shape[2] * x.shape[3]),
        lambda x: functional.avg_pool3d(x, (3, *x.shape[2:])),
        lambda x: x + functional.one_hot(torch.arange(x.shape[3]), x.shape[3])[-1],
        lambda x: x / x.new_tensor([x.shape[2], x.shape[3]]).max(),
        lambda x: torch.take_along_dim(x, x.argsort(-1), -1),
        lambda x: x.take_along_dim(x.argmax(2, keepdim=True), dim=2),
        lambda x: torch.take_along_dim(x, x[:1, :1].argsort(1), 1) + x.take_along_dim(x.argsort(0)).mean(),
        lambda x: torch.take_along_dim(x[:1], (x > 0).long() - 1, dim=1),
        lambda x: x + torch.as_tensor(x.shape[3]) + torch.as_tensor(x.shape[2] / 3, dtype=x.dtype, device=x.device),
        lambda x: x * torch.as_tensor([x.shape[2], x.shape[3]]).sum() + torch.as_tensor([x.shape[2] / 3, 0.5])[0],
        lambda x: x + torch.asarray(x.shape[3]) * torch.asarray([x.shape[2] / 3], dtype=torch.float32, copy=True),
        lambda x: x / math.sqrt(x.shape[3]) + np.sqrt(x.shape[2] / 2),
        lambda x: x + np.ceil(x.shape[3] / 3) - np.floor(x.shape[3] / 3) + np.prod(x.shape[2:]),
        lambda x: x + sum(divmod(x.shape[3], 3)) + divmod(50, x.shape[3])[1] + divmod(x.shape[3] / 2, 3)[0],
        lambda x: x + torch.fft.fftfreq(x.shape[3]) + torch.fft.fftfreq(x.shape[2], 0.25)[-1],
        lambda x: x * torch.fft.rfftfreq(x.shape[3] * 2 - 1, d=0.5, dtype=x.dtype, device=x.device),
        lambda x: x + torch.logspace(-1, 1, x.shape[3]) + torch.logspace(0, 3, steps=x.shape[3], base=2),
        lambda x: x + torch.bartlett_window(x.shape[3]) * torch.blackman_window(x.shape[3]),
        lambda x: x + torch.hann_window(x.shape[3], dtype=x.dtype, device=x.device) * torch.hamming_window(x.shape[3]),
        lambda x: x + torch.hann_window(x.shape[3], periodic=False) * torch.hamming_window(x.shape[3], False, 0.5),
        lambda x: torch.tril_indices(x.shape[3], x.shape[3]) * torch.triu_indices(x.shape[3], x.shape[3]) + x.mean(),
        lambda x: torch.triu_indices(x.shape[3] + 1, x.shape[3] + 1, offset=1, device=x.device) + x.mean(),
        lambda x: torch.tril_indices(x.shape[3] + 1, x.shape[3] + 1, -1, dtype=torch.int32) + x.mean(),
        lambda x: torch.tril_indices(x.shape[3] + 6, x.shape[3] + 6, -5) + x.mean(),
        lambda x: x.repeat(1, 1, 1, 4).unfold(3, x.shape[3], x.shape[3]) * 2,
        lambda x: x.repeat(1, 1, 1, 4).unfold(-1, x.shape[3] + 1, 1).sum(-1),
        lambda x: x + torch.bincount((x[0, 0] > 0).long().flatten(), minlength=x.shape[3]) + of_weights(x),
        lambda x: x + torch.cdist(x, x).mean(-1, keepdim=True) + torch.cdist(x[:, :1], x, p=1.0).mean(),
        lambda x: torch.cdist(x, torch.linspace(-2, 2, 30)[:, None].expand(30, x.shape[3])),
        lambda x: x + torch.gradient(x, dim=3)[0] + torch.gradient(x[:, 0], spacing=[0.5, 2.0], dim=(2, 1))[1][:, None],
        lambda x: sum(torch.gradient(x.repeat(2, 2, 2, 2), edge_order=2, spacing=0.5)),
        lambda x: x + torch.hamming_window(x.shape[3], periodic=True, alpha=0.6, beta=0.4, dtype=x.dtype),
    ],
)
def test_sizes_stay_dynamic(function: Compute) -> None:
    found = captured(function)
    assert (found.fixed, found.bounds) == ((), {})
    program = found.program.module()
    for height, width in itertools.product((2, 9, 64), (2, 11)):
        x = torch.randn(3, 3, height, width)
        torch.testing.assert_close(program(x)[0], function(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "edge_order"),
    [(torch.bfloat16, 1), (torch.float64, 1), (torch.float64, 2), (torch.int64, 1), (torch.int64, 2)],
)
def test_differences_have_the_dtype_of_torch(dtype: torch.dtype, edge_order: int) -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        return torch.gradient((5 * x).to(dtype), dim=3, spacing=0.1, edge_order=edge_order)[0]

    x = torch.randn(3, 3, 5, 7)
    torch.testing.assert_close(captured(slope).program.module()(x)[0], slope(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.arange(2 * x.shape[3])[x.shape[3] :] % x.shape[2],
        lambda x: torch.remainder(x * 50, x.shape[3]),
        lambda x: (x * 50).remainder(other=x.shape[3]),
        lambda x: torch.view_as_real(torch.fft.rfft(x) / x.shape[3]),
        lambda x: torch.view_as_real(x.shape[3] * torch.fft.rfft(x)),
    ],
)
def test_a_size_becomes_a_tensor_where_a_number_fails(function: Compute) -> None:
    found = captured(function)
    assert (found.fixed, found.bounds) == ((), {})
    nodes = [
        node for node in found.program.graph.nodes if str(node.target).startswith(("aten.rem", "aten.div", "aten.mul"))
    ]
    assert nodes
    assert not any(isinstance(arg.meta["val"], torch.SymInt) for node in nodes for arg in node.all_input_nodes)
    x = torch.randn(3, 3, 9, 11)
    torch.testing.assert_close(found.program.module()(x)[0], function(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.avg_pool2d(x, x.shape[2] // 2),  # a part of the input
        lambda x: functional.max_pool1d(x[:, :, 0], x.shape[2]),  # another size
        lambda x: functional.avg_pool2d(x, x.shape[2:], 1, 1),  # padded
        lambda x: functional.max_pool2d(x, x.shape[2:], return_indices=True)[1],
        lambda x: functional.avg_pool2d(x, x.shape[2:], divisor_override=2),
    ],
)
def test_other_pools_stay_pools(function: Compute) -> None:
    found = captured(function)
    assert found.fixed
    assert any("pool" in str(node.target) for node in found.program.graph.nodes)
    x = torch.randn(2, 3, 8, 10)
    torch.testing.assert_close(found.program.module(check_guards=False)(x)[0], function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.max_pool1d(x, 2),
        lambda x: functional.max_pool1d(x, kernel_size=(3,), stride=2, padding=1, dilation=2, ceil_mode=True),
        lambda x: torch.max_pool1d(x, 2, ceil_mode=True),
        lambda x: torch.max_pool1d(input=x, kernel_size=3, stride=1),
        lambda x: functional.max_pool1d(x[0], 3, 3),  # without a batch
        lambda x: functional.max_pool1d(x, 2, return_indices=True)[1],
        nn.MaxPool1d(3, stride=3, padding=1, dilation=1, ceil_mode=True),
        lambda x: functional.avg_pool1d(x, 3, 2, 1, ceil_mode=True),
        lambda x: functional.lp_pool1d(x.abs(), 2, 3, 2),
        lambda x: functional.adaptive_max_pool1d(x, 3),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_pools_of_sequences_keep_the_sizes(function: Compute, dtype: torch.dtype) -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return function(x.flatten(1, 2).to(dtype))

    found = captured(pooled)
    assert found.fixed == ()
    program = found.program.module()
    for batch, height, width in ((2, 2, 6), (5, 3, 7), (8, 64, 64)):
        x = torch.randn(batch, 3, height, width)
        x[0, 1, 0, 2:4] = torch.tensor([math.nan, -math.inf])
        torch.testing.assert_close(program(x)[0], pooled(x), rtol=0, atol=0, equal_nan=True)


def test_constant_sizes_call_torch() -> None:
    x = torch.randn(2, 3, 8, 10)
    with sizes_in_calls.traced():
        replaced = torch.linspace
        given = (
            functional.max_pool2d(x, 8),
            functional.max_pool1d(x[0], 3, 2, 1),
            torch.linspace(0, 1, 7),
            x.new_tensor([1, 2]),
            functional.one_hot(x.argmax(3)),
        )
    assert replaced is not torch.linspace
    expected = (
        functional.max_pool2d(x, 8),
        functional.max_pool1d(x[0], 3, 2, 1),
        torch.linspace(0, 1, 7),
        x.new_tensor([1, 2]),
        functional.one_hot(x.argmax(3)),
    )
    assert all(map(torch.equal, given, expected))


@pytest.mark.parametrize("name", sizes_in_calls.WINDOWS)
@pytest.mark.parametrize("periodic", [True, False])
def test_windows_of_every_length(name: str, periodic: bool) -> None:
    for length in range(1, 9):
        expected = getattr(torch, f"{name}_window")(length, periodic)
        torch.testing.assert_close(sizes_in_calls.window(name)(length, periodic), expected, rtol=0, atol=1e-6)
