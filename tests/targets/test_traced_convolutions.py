"""Transposed convolutions to a size of the input in a trace, at other sizes than the example's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from exporter.targets import _tracing


class Decodes(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.layer(x, output_size=skip.shape[2:])


class Adds(nn.Module):
    """Pads one dimension by a number that is computed from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(4, 2, 3, 3))

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        added = skip.size(3) - 2 * x.size(3) + 1
        y = F.conv_transpose2d(x, self.weight, stride=2, padding=1, output_padding=(1, added), groups=2)
        return y + F.conv_transpose2d(x, self.weight, None, 2, 1, 1, 2)[..., :1]


@pytest.mark.parametrize(
    ("model", "dims"),
    [
        (Decodes(nn.ConvTranspose1d(4, 3, 3, 2, 1)), 1),
        (Decodes(nn.ConvTranspose2d(4, 4, 3, 2, 1, groups=2, bias=False)), 2),
        (Decodes(nn.ConvTranspose2d(4, 3, (3, 2), (2, 3), (1, 0), dilation=(2, 1))), 2),
        (Decodes(nn.ConvTranspose3d(4, 2, 2, 2)), 3),
        (Adds(), 2),
    ],
)
def test_an_output_size_is_not_fixed(model: nn.Module, dims: int) -> None:
    def inputs(size: int, more: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(2, 4, *[size, size + 1, size][:dims])
        least = model.layer(x).shape if isinstance(model, Decodes) else (2, 4, 2 * size, 2 * size + 1)
        return x, torch.randn(*least[:-1], least[-1] + more)

    model.requires_grad_(False).eval()
    with torch.no_grad(), _tracing.warned():
        traced = torch.jit.freeze(_tracing.trace(model, inputs(5, 0)).eval())
    for size, more in ((5, 1), (3, 0), (8, 1)):
        x, skip = inputs(size, more)
        assert torch.equal(traced(x, skip), model(x, skip))
