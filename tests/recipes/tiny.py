"""Minimal models that work."""

from __future__ import annotations

import os

import torch
from recipes_shared import Mlp


class mlp:
    """A recipe as a class with every part."""

    sizes = {"batch": (1, 8)}

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Mlp()

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, 4)}


class Pair(torch.nn.Module):
    """Two inputs by keyword, a constant, a dict of outputs, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, *, ids: torch.Tensor, mask: torch.Tensor, factor: float) -> dict[str, torch.Tensor]:
        hidden = self.table(ids) * mask.unsqueeze(-1) * self.scale * factor
        return {"hidden": hidden, "pooled": hidden.mean(dim=1), "best": hidden.sum(-1).argmax(-1)}


class pair:
    """A recipe with two sizes, batch and sequence."""

    sizes = {"batch": (1, 4), "sequence": 6}

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Pair()

    @staticmethod
    def inputs(batch: int = 1, sequence: int = 3) -> dict[str, object]:
        return {
            "ids": torch.randint(0, 11, (batch, sequence)),
            "mask": torch.ones(batch, sequence),
            "factor": 0.5,
        }


def made() -> torch.nn.Module:
    """A function that returns the module; `made_inputs` returns its inputs."""
    return Mlp()


def made_inputs(batch: int = 2) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 4),)


def lonely() -> torch.nn.Module:
    """A function without an inputs function; the inputs come from --inputs FILE."""
    return Mlp()


def _tell() -> None:
    print(f"niceness {os.getpriority(os.PRIO_PROCESS, 0)}, waits {os.environ.get('OMP_WAIT_POLICY', 'as usual')}")


class told:
    """A recipe that writes the priority and wait policy of each job that uses it to the job's log."""

    sizes = mlp.sizes

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, torch.Tensor]:
        _tell()
        return mlp.inputs(batch)

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        _tell()
        return Mlp()


class Sums(torch.nn.Module):
    """Sums in float64 and in float32."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"wide": x.double().sum(-1), "running": x.cumsum(-1)}


class sums:
    """A recipe with outputs in two dtypes. onnxruntime adds float32 numbers one by one, eager in float64."""

    sizes = {"batch": (1, 32)}

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Sums()

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(batch, 256)}


class InPlace(torch.nn.Module):
    """Changes its input in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1.0) * 2.0


def in_place() -> torch.nn.Module:
    return InPlace()


def in_place_inputs(batch: int = 2) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4)}
