"""Models that call operators from outside torch."""

from __future__ import annotations

import imports_when_called
import torch
import torchvision


class Affine(torch.nn.Module):
    """Calls an operator from cpp/tests/operators.cpp, whose library must already be loaded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.exporter_test.affine(x, 2.0, -1.0).sum(1)


class affine:
    """Needs a library of the user's."""

    sizes = {"batch": (1, 4)}

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Affine()

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, torch.Tensor]:
        return {"x": torch.rand(batch, 5)}


class Aligned(torch.nn.Module):
    """Returns one number for each channel and box, from the image inside the box."""

    def forward(self, image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        return torchvision.ops.roi_align(image, boxes, 1)


class aligned(imports_when_called.aligned):
    """Needs torchvision's library."""

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Aligned()
