"""Code that the recipes in this folder share: a recipe may import modules next to it."""

from __future__ import annotations

import torch


class Mlp(torch.nn.Module):
    """One tensor in, one tensor out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def inputs(batch: int = 2) -> dict[str, torch.Tensor]:
    """Return rows of four numbers."""
    return {"x": torch.randn(batch, 4)}
