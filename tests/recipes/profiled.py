"""A model with one layer that is larger than the others."""

from __future__ import annotations

import torch
from torch import nn


class Layer(nn.Module):
    """Two products around an activation."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.dense = nn.Linear(256, hidden)
        self.back = nn.Linear(hidden, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result, of the shape of x."""
        y = self.norm(x)
        y = torch.relu(self.dense(y))
        return x + self.back(y[..., : self.back.in_features])


class Net(nn.Module):
    """Three layers, of which the second is larger."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(hidden if index == 1 else 128) for index in range(3))
        self.layers[1].back = nn.Linear(128, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of shape (batch, 256)."""
        for layer in self.layers:
            x = layer(x)
        return x


class Recipe:
    """Seeded random weights."""

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    def load(self, weights: str) -> nn.Module:
        """Return the model."""
        return Net(self.hidden)

    def inputs(self, batch: int = 64) -> dict[str, torch.Tensor]:
        """Return x, of shape (batch, 256)."""
        return {"x": torch.randn(batch, 256)}


recipe, wide = Recipe(1 << 14), Recipe(1 << 17)  # the second one for a GPU
