"""Operators whose fused kernels for GPUs have no fake kernel, so that torch.export cannot capture them.

They are torch.nn.GRUCell, and cuDNN's bilinear grid_sample with aligned corners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

BILINEAR, ZEROS = 0, 0  # torch's numbers of the interpolation and of the padding
SAMPLER = ("input", "grid", "interpolation_mode", "padding_mode", "align_corners")


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """Compute these operators from others on a GPU within this context."""
    cell, sampler = torch._VF.gru_cell, torch.grid_sampler

    def unfused_cell(inputs: torch.Tensor, *rest: Any) -> torch.Tensor:
        result: torch.Tensor = (gru_cell if inputs.is_cuda else cell)(inputs, *rest)
        return result

    def unfused_sampler(*args: Any, **named: Any) -> torch.Tensor:
        input, grid, *how = (*args, *(named[name] for name in SAMPLER[len(args) :]))
        fused = input.is_cuda and input.dim() == 4 and how == [BILINEAR, ZEROS, True]
        return (torch.grid_sampler_2d if fused else sampler)(input, grid, *how)

    with (
        mock.patch.object(torch._VF, "gru_cell", unfused_cell),
        mock.patch.object(torch, "grid_sampler", unfused_sampler),
    ):
        yield


def gru_cell(inputs: torch.Tensor, state: torch.Tensor, *params: Any) -> torch.Tensor:
    """Return the next state; `params` are the weights of input and state, then their biases, as in torch.gru_cell."""
    weight, hidden_weight, bias, hidden_bias = params
    given = torch.nn.functional.linear(inputs, weight, bias).chunk(3, -1)
    held = torch.nn.functional.linear(state, hidden_weight, hidden_bias).chunk(3, -1)
    reset, update = torch.sigmoid(given[0] + held[0]), torch.sigmoid(given[1] + held[1])
    new = torch.tanh(given[2] + reset * held[2])
    return new + update * (state - new)
