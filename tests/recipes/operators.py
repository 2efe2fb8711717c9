"""Models that call operators which are not torch's own."""

from __future__ import annotations

import torch
import torchvision


class Affine(torch.nn.Module):
    """An operator of cpp/tests/operators.cpp; whoever loads this has loaded its library."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.exporter_test.affine(x, 2.0, -1.0).sum(1)


class affine:
    """A library of one's own."""

    sizes = {"batch": (1, 4)}

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Affine()

    @staticmethod
    def inputs(batch: int = 2) -> dict[str, torch.Tensor]:
        return {"x": torch.rand(batch, 5)}


class Aligned(torch.nn.Module):
    """One number a channel and box, of the image below it."""

    def forward(self, image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        return torchvision.ops.roi_align(image, boxes, 1)


class aligned:
    """torchvision's library."""

    sizes = {"boxes": (1, 8)}

    @staticmethod
    def load(weights: str) -> torch.nn.Module:
        return Aligned()

    @staticmethod
    def inputs(boxes: int = 2) -> dict[str, torch.Tensor]:
        corners = torch.rand(boxes, 2) * 4
        return {
            "image": torch.rand(1, 3, 8, 8),
            "boxes": torch.cat([torch.zeros(boxes, 1), corners, corners + 3], dim=1),
        }
