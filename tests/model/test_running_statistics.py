"""Batch normalization that updates its running statistics, in exported graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from exporter.model import running_statistics
from exporter.model.tensors import Tensors
from exporter.model.torchscript import bridge


class Online(nn.Module):
    """Updates the statistics and then normalizes with them; returns them like a model with state outside."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=affine).eval()
        if affine:
            nn.init.normal_(self.norm.weight)
            nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Tensors:
        mean, variance, norm = mean.clone(), variance.clone(), self.norm
        now = functional.batch_norm(x, mean, variance, norm.weight, norm.bias, training=True, momentum=0.2)
        torch.batch_norm(x, None, None, mean, variance, True, 0.3, 1e-5, True)
        later = functional.batch_norm(x, mean, variance, norm.weight, norm.bias)
        return now, later, mean.clone(), variance.clone()


def scripted(module: nn.Module, example: Tensors) -> torch.jit.ScriptModule:
    with torch.no_grad():
        return bridge.from_exported(torch.export.export(module, example, strict=False))


def example() -> Tensors:
    torch.manual_seed(0)
    return 3 * torch.randn(4, 3, 5, 6) + 1, torch.zeros(3), torch.ones(3)


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_are_updated(affine: bool) -> None:
    module = Online(affine)
    with running_statistics.written():
        script = scripted(module, example())
    for got, wanted in zip(script(*example()), module(*example()), strict=True):
        torch.testing.assert_close(got, wanted)


def test_only_updates_are_replaced() -> None:
    """Without statistics, or if they are only read, torch's kernel stays."""
    with running_statistics.written():
        x, mean, variance = example()
        torch.testing.assert_close(functional.batch_norm(x, mean, variance), x / 1.00001**0.5)
        program = torch.export.export(nn.BatchNorm2d(3, track_running_stats=False), (x,), strict=False)
    assert "aten.batch_norm.default" in str(program.graph)


def test_torch_drops_an_update_whose_result_is_unused() -> None:
    """If this fails, the module may no longer be needed."""
    variance = scripted(Online(affine=True), example())(*example())[3]
    assert not torch.allclose(variance, Online(affine=True)(*example())[3])
