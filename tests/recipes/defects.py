"""Models that torch.jit.trace silently gets wrong."""

from __future__ import annotations

import torch


class Branch(torch.nn.Module):
    """Takes one of two branches, by the sign of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return x * 2.0
        return x - 10.0


class Loop(torch.nn.Module):
    """Loops over the rows of the batch."""

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


class Steps(torch.nn.Module):
    """Loops over the sequence, whose length is unrolled unless TorchScript compiles the source."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 256, 256) * 0.02)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        (x,) = tensors
        state = torch.zeros(x.shape[0], 256)
        for i in range(x.shape[1]):
            state = torch.tanh(state @ self.weight[i % 3] + x[:, i].sum(-1, keepdim=True))
        return state


def steps() -> torch.nn.Module:
    return Steps()


def steps_inputs(batch: int = 2, sequence: int = 4) -> tuple[torch.Tensor]:
    return (torch.randn(batch, sequence, 3),)


steps_sizes = {"batch": (1, 8), "sequence": (1, 8)}
