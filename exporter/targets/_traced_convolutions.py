"""Transposed convolutions to an `output_size` of the input, as of a decoder that meets an earlier feature map.

A trace keeps the output padding of the example, so it calls a function of TorchScript that takes it as a tensor.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def transposed(func: Callable[..., torch.Tensor], *args: Any, **named: Any) -> torch.Tensor:
    """Call one of TRANSPOSED so that a trace keeps an output padding of sizes."""
    x, weight, *settings = _arguments(*args, **named)
    bias, stride, padding, output_padding, groups, dilation = settings
    dims = weight.dim() - 2
    windows = [[one] * dims if isinstance(one, int) else list(one) for one in (stride, padding, dilation)]
    others = [groups, *(one for window in windows for one in window)]
    sizes = output_padding if isinstance(output_padding, (list, tuple)) else (output_padding,) * dims
    computed = any(isinstance(one, torch.Tensor) for one in sizes)
    if not computed or x.dim() != weight.dim() or not all(isinstance(one, int) for one in others):
        return func(*args, **named)
    numbers = [one.cpu() if isinstance(one, torch.Tensor) else torch.full((), one) for one in sizes]
    stride, padding, dilation = (window * (dims if len(window) == 1 else 1) for window in windows)
    found: torch.Tensor = _compiled()(x, weight, bias, stride, padding, dilation, torch.stack(numbers), groups)
    return found


def _arguments(
    input: torch.Tensor,  # torch's name of it
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> tuple[Any, ...]:
    return input, weight, bias, stride, padding, output_padding, groups, dilation


def _convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: torch.Tensor,
    groups: int,
) -> torch.Tensor:
    added: list[int] = output_padding.tolist()
    return torch.convolution(x, weight, bias, stride, padding, dilation, True, added, groups)


@functools.cache
def _compiled() -> Callable[..., Any]:
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated
        compiled: Callable[..., Any] = torch.jit.script(_convolve)
    return compiled
