"""A gated feed-forward network, normalized by the operator example::rms_norm or by torch's own operators.

exporter export examples/custom_op/model.py:fused --ops-lib build/custom_op/rms_norm.so
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


@torch.library.register_fake("example::rms_norm")
def _(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Tell torch.export and torch.compile the shape, type and strides of the output, without computing it."""
    torch._check(weight.dim() == 1 and weight.shape[0] == input.shape[-1], lambda: "rms_norm: the sizes differ")
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def composed_rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return what example::rms_norm does, from torch's own operators."""
    return input * torch.rsqrt(input.pow(2).mean(-1, keepdim=True) + eps) * weight


class FusedNorm(nn.Module):
    """Calls the operator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.ops.example.rms_norm(input, self.weight, 1e-6)
        return output


class ComposedNorm(FusedNorm):
    """Calls torch's own operators."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return composed_rms_norm(input, self.weight, 1e-6)


class Adapter(nn.Module):
    """Adds a correction of low rank to its input, as the adapters of fine-tuned transformers do."""

    def __init__(self, norm: nn.Module, width: int, rank: int) -> None:
        super().__init__()
        self.norm = norm
        self.down = nn.Linear(width, rank)
        self.up = nn.Linear(rank, width)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = input + self.up(functional.silu(self.down(self.norm(input))))
        return output


def network(norm: type[FusedNorm], width: int = 768, rank: int = 32, layers: int = 4) -> nn.Module:
    return nn.Sequential(*(Adapter(norm(width), width, rank) for _ in range(layers)), norm(width))


def fused() -> nn.Module:
    """Return the network with the operator, whose library must be loaded (--ops-lib)."""
    return network(FusedNorm)


def composed() -> nn.Module:
    """Return the same network without the operator."""
    return network(ComposedNorm)


def fused_inputs(batch: int = 2, sequence: int = 128) -> dict[str, torch.Tensor]:
    return {"input": torch.randn(batch, sequence, 768)}


composed_inputs = fused_inputs
fused_sizes = composed_sizes = {"batch": (1, 4), "sequence": (1, 256)}
