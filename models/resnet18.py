"""ResNet-18 (He et al., 2015): 11.7 million parameters."""

from __future__ import annotations

import warnings

import torch
from torchvision.models import ResNet18_Weights, resnet18

sizes = {"batch": (1, 32)}


def load(weights: str) -> torch.nn.Module:
    """Return the model with pretrained weights, or else with random weights and random batch norm statistics.

    Raises OSError if `weights` is "pretrained" and the weights are not available.
    """
    if weights != "random":
        try:
            model = resnet18(weights=ResNet18_Weights.DEFAULT)
            model.exporter_weights = "pretrained"
            model.exporter_origin = ResNet18_Weights.DEFAULT.url
            return model
        except OSError:
            if weights == "pretrained":
                raise
            warnings.warn(
                "random weights: the pretrained weights cannot be fetched; --weights pretrained makes this an error",
                stacklevel=2,
            )
    model = resnet18()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # with the initial 0 and 1, wrong folding would not show
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2.0)
    model.exporter_weights = "random"
    return model


def inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    """Return random numbers in the range of normalized images, [batch, 3, 224, 224]."""
    return {"x": torch.randn(batch, 3, 224, 224)}
