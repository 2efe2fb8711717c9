"""Three small models for release.toml. Each has a function that builds it, example inputs and size ranges."""

from __future__ import annotations

import torch
from torch import nn


def mlp() -> nn.Module:
    """Return a classifier with 64 input features."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def mlp_inputs(batch: int = 2) -> dict[str, torch.Tensor]:
    return {"input": torch.randn(batch, 64)}


mlp_sizes = {"batch": (1, 16)}


def cnn() -> nn.Module:
    """Return a classifier for 32x32 RGB images."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def cnn_inputs(batch: int = 2) -> dict[str, torch.Tensor]:
    return {"input": torch.randn(batch, 3, 32, 32)}


cnn_sizes = {"batch": (1, 16)}


class Tagger(nn.Module):
    """Scores each token of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        weights = torch.softmax(self.mix(hidden) @ hidden.transpose(1, 2), dim=-1)
        scores: torch.Tensor = self.head(weights @ hidden)
        return scores


def tagger() -> nn.Module:
    return Tagger()


def tagger_inputs(batch: int = 2, sequence: int = 12) -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(0, 100, (batch, sequence))}


tagger_sizes = {"batch": (1, 16), "sequence": (1, 32)}
