"""Models that torch.jit.trace gets wrong in silence."""

from __future__ import annotations

import torch


class Branch(torch.nn.Module):
    """Takes one of two ways by the sign of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x * 2.0
        return x - 10.0


class Loop(torch.nn.Module):
    """Goes through the batch row by row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = []
        for i in range(x.shape[0]):
            rows.append(x[i] * 2.0)
        return torch.stack(rows)


def branch() -> torch.nn.Module:
    return Branch()


def loop() -> torch.nn.Module:
    return Loop()


def branch_inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4)}


def loop_inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4)}
