"""Other values for a model's inputs, drawn at random."""

from __future__ import annotations

import torch

from exporter.model.tensors import Tensors


def drawn(data: Tensors, generator: torch.Generator) -> Tensors:
    """Return floats of another scale, offset, sign or density, and integers and flags from the same range.

    Signs are only removed. Numbers of float16 are only scaled down, because models compute infinity from large ones.
    The generator is of the CPU, and so are the results.
    """
    return tuple(_drawn(tensor.cpu(), generator) for tensor in data)


def _drawn(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    def uniform() -> torch.Tensor:
        return torch.rand((), generator=generator)

    def some(share: torch.Tensor) -> torch.Tensor:
        """Return a mask that is true for about this share of the elements; for none below 0, and for all from 1 on."""
        return torch.rand(tensor.shape, generator=generator) < share

    if tensor.is_floating_point():
        scale = 10 ** ((3 if tensor.dtype == torch.float16 else 6) * uniform() - 3)
        shift = (2 * uniform() - 1) * (uniform() < 0.5)
        made = (tensor + shift) * scale
        made = torch.where(some(uniform()), made, made.abs())
        return torch.where(some(uniform() - 0.7), 0.0, made).to(tensor.dtype)
    if tensor.dtype == torch.bool:
        return some(uniform() * 1.4 - 0.2)
    if tensor.is_complex() or not tensor.numel():
        return tensor
    low, high = int(tensor.min()), int(tensor.max())
    return torch.randint(low, high + 1, tensor.shape, generator=generator).to(tensor.dtype)
