from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from exporter.model import gpu_operators


@pytest.mark.parametrize("bias", [True, False])
def test_the_formula_of_a_cell(bias: bool) -> None:
    cell, x, state = torch.nn.GRUCell(5, 7, bias=bias), torch.randn(3, 5), torch.randn(3, 7)
    params = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    torch.testing.assert_close(gpu_operators.gru_cell(x, state, *params), cell(x, state))


def test_a_cell_on_a_cpu_is_torchs() -> None:
    cell, x, state = torch.nn.GRUCell(5, 7), torch.randn(3, 5), torch.randn(3, 7)
    usual = torch._VF.gru_cell
    with gpu_operators.captured():
        assert torch._VF.gru_cell is not usual
        inside = cell(x, state)
    assert torch._VF.gru_cell is usual
    assert torch.equal(inside, cell(x, state))


@pytest.mark.parametrize(("mode", "padding", "aligned"), [("bilinear", "zeros", True), ("bicubic", "border", False)])
def test_grid_sample_on_a_cpu_is_torchs(mode: str, padding: str, aligned: bool) -> None:
    x, grid, usual = torch.randn(2, 3, 4, 5), torch.rand(2, 6, 7, 2) * 2 - 1, torch.grid_sampler
    with gpu_operators.captured():
        assert torch.grid_sampler is not usual
        inside = functional.grid_sample(x, grid, mode, padding, aligned)
    assert torch.grid_sampler is usual
    assert torch.equal(inside, functional.grid_sample(x, grid, mode, padding, aligned))


def test_grid_sample_with_named_arguments() -> None:
    x, grid = torch.randn(2, 3, 4, 5), torch.rand(2, 6, 7, 2) * 3 - 1.5
    named = {"interpolation_mode": gpu_operators.BILINEAR, "padding_mode": gpu_operators.ZEROS, "align_corners": True}
    expected = functional.grid_sample(x, grid, "bilinear", "zeros", True)
    with gpu_operators.captured():
        assert torch.equal(torch.grid_sampler(x, grid=grid, **named), expected)
    own = torch.grid_sampler_2d(x, grid, **named)
    assert torch.equal(own, expected)


def test_grid_sample_on_a_gpu_is_captured() -> None:
    with FakeTensorMode(), gpu_operators.captured():
        x, grid = torch.empty(2, 3, 4, 5, device="cuda"), torch.empty(2, 6, 7, 2, device="cuda")
        assert functional.grid_sample(x, grid, align_corners=True).shape == (2, 3, 6, 7)
