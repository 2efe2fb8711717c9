"""Vision Transformer B/16 (Dosovitskiy et al., 2020): 86.6 million parameters."""

from __future__ import annotations

import warnings

import torch
from torchvision.models import ViT_B_16_Weights, vit_b_16

sizes = {"batch": (1, 32)}


def load(weights: str) -> torch.nn.Module:
    """Return the model with pretrained weights, or else with random weights.

    Raises OSError if `weights` is "pretrained" and the weights are not available.
    """
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
                "random weights: the pretrained weights cannot be fetched; --weights pretrained makes this an error",
                stacklevel=2,
            )
    model = vit_b_16()
    torch.nn.init.normal_(model.heads.head.weight, std=0.02)  # with torchvision's zeros, every output would be zero
    model.exporter_weights = "random"
    return model


def inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    """Return random numbers in the range of normalized images, [batch, 3, 224, 224]."""
    return {"x": torch.randn(batch, 3, 224, 224)}


def loss(outputs: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the cross entropy for labels that count up, for `exporter profile --train`."""
    labels = torch.arange(len(inputs["x"]), device=inputs["x"].device)
    return torch.nn.functional.cross_entropy(outputs["output"], labels)
