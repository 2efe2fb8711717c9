"""Models for which `exporter explain` has findings."""

from __future__ import annotations

import torch

library = torch.library.Library("explained", "FRAGMENT")
if not hasattr(torch.ops.explained, "twice"):  # tests import this module more than once
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")


class Asserts(torch.nn.Module):
    """Converts a tensor to a boolean that never changes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() != x.sum():  # harmless
            raise ValueError("not a number")
        return x * 2


class Mixed(torch.nn.Module):
    """Converts tensors to a number that never changes and one that depends on the values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().sum() < 0:  # harmless
            raise ValueError("not to be")
        return x * int(x.sum() > 0)  # matters


class Stars(torch.nn.Module):
    """torch.jit.script does not support *args."""

    def forward(self, *x: torch.Tensor) -> torch.Tensor:  # unscriptable
        return x[0] * 2


class Eigenvalues(torch.nn.Module):
    """ONNX has no such operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x.transpose(-1, -2) @ x)  # missing


class Distances(torch.nn.Module):
    """Only torch's older ONNX exporter can translate it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, 1 - x.clamp(0, 1.0))  # older


class Custom(torch.nn.Module):
    """Calls a custom operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.explained.twice(x)


class Narrow(torch.nn.Module):
    """Branches on a size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] < 5 else x * 3  # condition


class Doubles(torch.nn.Module):
    """One operation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Breaks(torch.nn.Module):
    """Breaks the graph on purpose."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()  # break
        return y + 1


def inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4)}


asserts, mixed, stars, eigenvalues, custom, narrow, breaks = Asserts, Mixed, Stars, Eigenvalues, Custom, Narrow, Breaks
distances, distances_inputs = Distances, inputs
doubles = Doubles
asserts_inputs = mixed_inputs = eigenvalues_inputs = custom_inputs = narrow_inputs = breaks_inputs = inputs


def doubles_inputs() -> dict[str, torch.Tensor]:
    return inputs()


def stars_inputs(batch: int = 1) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 4),)
