"""Models with a loss, whose slowest line is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

SLOW, INNER, ROWS, WIDTH = 1, 8192, 128, 64  # SLOW is a block of net()


class Block(nn.Module):
    """A layer norm and two matrix products on one line, as wide in between as asked."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Parameter(torch.randn(WIDTH, inner) / WIDTH**0.5)
        self.second = nn.Parameter(torch.randn(inner, WIDTH) / inner**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        hidden = hidden @ self.first @ self.second  # the slow line, in one block
        return x + F.relu(hidden)


class Net(nn.Module):
    """Blocks of which one is much wider."""

    def __init__(self, widths: tuple[int, ...], dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, widths))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(self.dropout(x))
        return scores


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net((16, INNER, 16))


def net_inputs(batch: int = ROWS) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, WIDTH)}


def net_loss(outputs: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    labels = torch.arange(len(inputs["x"]), device=inputs["x"].device) % 8
    return F.cross_entropy(outputs["output"], labels)


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return Net((16,), dropout=0.2)


dropping_inputs, dropping_loss = net_inputs, net_loss


def lossless() -> nn.Module:
    return nn.Linear(4, 4)


def lossless_inputs(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 4)


def unreduced() -> nn.Module:
    return nn.Linear(4, 4)


unreduced_inputs = lossless_inputs


def unreduced_loss(outputs: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    return outputs["output"] - inputs


def raising() -> nn.Module:
    return nn.Linear(4, 4)


raising_inputs = lossless_inputs


def raising_loss(outputs: dict[str, torch.Tensor], inputs: torch.Tensor) -> Any:
    return outputs["logits"].mean()


class Frozen(nn.Linear):
    """Trains nothing."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.requires_grad_(False)


def frozen() -> nn.Module:
    return Frozen()


frozen_inputs = lossless_inputs


def frozen_loss(outputs: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    return outputs["output"].mean()
