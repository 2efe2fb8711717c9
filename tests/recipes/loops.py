"""Models that call torch's higher-order operators of loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.map import map as each
from torch._higher_order_ops.scan import scan

Tensors = dict[str, torch.Tensor]
map_: Any = each


class WhileLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        start = (torch.zeros((), dtype=torch.int64), x)
        i, y = torch.while_loop(lambda i, y: i < n.sum(), lambda i, y: (i + 1, torch.tanh(self.linear(y))), start)
        return {"i": i, "y": y}


class Scan(nn.Module):
    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        def step(h: torch.Tensor, x: torch.Tensor) -> Any:
            made = torch.tanh(h * 0.9 + x)
            return made, (made * 2).clone()

        return scan(step, h, x, dim=1)


class Map(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return map_(lambda row, weight: (row @ weight).relu(), x, self.weight)


def while_loop() -> nn.Module:
    return WhileLoop()


def while_loop_inputs(batch: int = 3) -> Tensors:
    return {"x": torch.randn(batch, 4), "n": torch.tensor([4])}


def scanned() -> nn.Module:
    return Scan()


def scanned_inputs(batch: int = 3) -> Tensors:
    return {"x": torch.randn(batch, 5, 4), "h": torch.randn(batch, 4)}


def mapped() -> nn.Module:
    return Map()


def mapped_inputs(batch: int = 3) -> Tensors:
    return {"x": torch.randn(batch, 2, 4)}


while_loop_sizes = scanned_sizes = mapped_sizes = {"batch": (1, 16)}
