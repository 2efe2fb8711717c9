"""Vision Transformer B/16 (Dosovitskiy et al., 2020): 86.6 million parameters."""

from __future__ import annotations

import warnings

import torch
from torchvision.models import ViT_B_16_Weights, vit_b_16

sizes = {"batch": (1, 32)}


def load(weights: str) -> torch.nn.Module:
    """Pretrained weights where they can be had; random ones elsewhere."""
    if weights != "random":
        try:
            model = vit_b_16(weights=ViT_B_16_Weights.DEFAULT)
            model.exporter_weights = "pretrained"
            model.exporter_origin = ViT_B_16_Weights.DEFAULT.url
            return model
        except OSError:
            if weights == "pretrained":
                raise
            warnings.warn(
                "random weights: the pretrained ones cannot be fetched; --weights pretrained insists",
                stacklevel=2,
            )
    model = vit_b_16()
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)  # torchvision's zeros would make every output zero
    model.exporter_weights = "random"
    return model


def inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    """Normalised images."""
    return {"x": torch.randn(batch, 3, 224, 224)}
