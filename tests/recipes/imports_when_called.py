"""A model that imports torchvision only when it is called."""

from __future__ import annotations

import torch


class Aligned(torch.nn.Module):
    """Returns one number for each channel and box, from the image inside the box."""

    def forward(self, image: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        import torchvision

        return torchvision.ops.roi_align(image, boxes, 1)


class aligned:
    """Boxes are in batch 0; the number of boxes varies."""

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
