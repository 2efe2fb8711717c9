"""The memory layout of images and of the weights of convolutions."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from exporter.core.errors import ExportError

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors

IMAGE = 4  # dimensions


def channels_last(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a flat module with its weights of four dimensions in the channels-last layout.

    Its inputs may have any layout, and its outputs have the usual one. Raises ExportError if it has no such weights.
    """
    import torch

    from exporter.model.tensors import saved

    if not any(tensor.dim() == IMAGE for tensor in saved(module)):
        raise ExportError("--channels-last has no effect: no weight has four dimensions", "leave it out")

    class ChannelsLast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = copy.deepcopy(module).to(memory_format=torch.channels_last)

        def forward(self, *inputs: torch.Tensor) -> Tensors:
            outputs: Tensors = self.module(*map(_as_images, inputs))
            return tuple(one.contiguous() for one in outputs)

    return ChannelsLast().eval()


def _as_images(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == IMAGE else tensor
