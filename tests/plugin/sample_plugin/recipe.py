"""A sample of a recipe: one linear layer."""

from __future__ import annotations

import torch

sizes = {"batch": (1, 8)}


def load(weights: str) -> torch.nn.Module:
    """Return a layer with random weights."""
    return torch.nn.Linear(4, 3).eval()


def inputs(batch: int = 2) -> dict[str, torch.Tensor]:
    """Return rows of four numbers."""
    return {"input": torch.randn(batch, 4)}
