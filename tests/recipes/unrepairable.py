"""Models for which every change that a rule could propose is wrong or cannot be proven."""

from __future__ import annotations

import random

import torch


class OneSided(torch.nn.Module):
    """Has a branch that no input takes, so nothing shows what the other side is for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.square().sum() < 0:
            return x * 3
        return x * 2


class Promoting(torch.nn.Module):
    """Counts in integers on one side: torch.where would make them floats, and they differ from 2**24 on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 100 if x.sum() > 0 else (x * 100).long()
        return y // 7


class Raising(torch.nn.Module):
    """One side fails where the other is taken."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x != 0).all():  # noqa: SIM108
            y = torch.linalg.inv(x[:1].T @ x[:1] + torch.diag(x[0]))
        else:
            y = torch.eye(4)
        return x @ y


class Writing(torch.nn.Module):
    """One side writes into a tensor that is used afterwards."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        z = y.view(-1)
        if x.mean() > 0:
            y += 10
        return z * 2


class Halving(torch.nn.Module):
    """Repeats until the values are small."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.abs().max() > 1:
            x = x / 2
        return x


class Drawing(torch.nn.Module):
    """Returns other values in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 and random.random() > 0.5 else -x  # torch.export always meets the sum


def inputs(batch: int = 3) -> dict[str, torch.Tensor]:
    """Return rows of four numbers."""
    return {"x": torch.randn(batch, 4)}


one_sided, promoting, raising = OneSided, Promoting, Raising
writing, halving, drawing = Writing, Halving, Drawing
one_sided_inputs = promoting_inputs = raising_inputs = inputs
writing_inputs = halving_inputs = drawing_inputs = inputs
