"""The channels-last layout of a trace."""

from __future__ import annotations

import pytest
import torch

from exporter.core.errors import ExportError
from exporter.targets import _layout


class Convolves(torch.nn.Module):
    """A flat module that returns an image and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.layer(image) * scale
        return found, found.mean((1, 2, 3))


def test_only_the_layout_changes() -> None:
    plain = Convolves().eval()
    changed = _layout.channels_last(plain)
    inputs = torch.randn(2, 3, 8, 8), torch.tensor(2.0)
    weight = changed.get_parameter("module.layer.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert plain.layer.weight.is_contiguous(), "the model itself does not change"
    traced = torch.jit.trace(changed, inputs)
    seen: list[bool] = []
    changed.get_submodule("module.layer").register_forward_pre_hook(
        lambda _, given: seen.append(given[0].is_contiguous(memory_format=torch.channels_last))
    )
    changed(*inputs)
    assert seen == [True]
    for run in (changed, traced):
        other = torch.randn(3, 3, 9, 7), torch.tensor(0.5)
        for found, expected in zip(run(*other), plain(*other), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.is_contiguous()


def test_a_module_without_such_weights_is_refused() -> None:
    with pytest.raises(ExportError, match="no weight has four dimensions"):
        _layout.channels_last(torch.nn.Linear(2, 2))
