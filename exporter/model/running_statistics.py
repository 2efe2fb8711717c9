"""Batch normalization that updates its running statistics, as operations that every target translates.

`aten.batch_norm` writes to the statistics, but its schema does not say so. What reads an exported graph therefore drops
the update (TorchScript, if nothing uses the result; torch.onnx always).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Compute and update running statistics with tensor operations while a graph is captured."""
    patched: Any = torch
    usual = torch.batch_norm

    def _batch_norm(
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> torch.Tensor:
        if not training or running_mean is None or running_var is None:
            return usual(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
        others = [0, *range(2, input.dim())]
        for kept, new in ((running_mean, input.mean(others)), (running_var, input.var(others))):
            kept.mul_(1 - momentum).add_(new.to(kept.dtype), alpha=momentum)
        return _normalized(input, weight, bias, eps)

    patched.batch_norm = _batch_norm
    try:
        yield
    finally:
        patched.batch_norm = usual


def _normalized(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    others, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
    scale = torch.rsqrt(x.var(others, correction=0) + eps)
    made = (x - x.mean(others).view(shape)) * scale.view(shape)
    made = made if weight is None else made * weight.view(shape)
    return made if bias is None else made + bias.view(shape)
