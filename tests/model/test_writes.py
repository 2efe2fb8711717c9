"""Writes to tensors and their views in the graphs of exported programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from exporter.model import writes


class Net(nn.Module):
    """Applies a function to the input and a buffer."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.randn(4, 4))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.buffer, torch.Tensor)
        return self.function(x, self.buffer)


def into_view(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.transpose(0, 1)[0].fill_(1)
    return y.relu()


def view_before_write(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    y = x * 2
    view = y.transpose(0, 1)
    y.mul_(20)
    return view.relu()


def by_name(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch.ops.aten.add_.Tensor(self=y[:1], other=x[:1])
    return y


def parts(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    first, _ = (x * 2).chunk(2)
    return first.add_(1)


@pytest.mark.parametrize(
    ("function", "written", "is_plain"),
    [
        (lambda x, buffer: x @ buffer, [], True),
        (lambda x, buffer: (x * 2).add_(x).relu_() + 1, [["mul", "add_", "relu_"]], True),
        (lambda x, buffer: (x * 2).relu_().view(-1).sum(), [["mul", "relu_", "view"]], True),
        (lambda x, buffer: x @ buffer.add_(1), [["b_buffer", "add_"]], True),
        (into_view, [["mul", "transpose", "select", "fill_"]], False),
        (view_before_write, [["mul", "transpose", "mul_"]], False),
        (by_name, [["mul", "slice_1", "add_"]], False),
        (parts, [["mul", "chunk", "getitem", "getitem_1", "add_"]], False),
    ],
)
def test_what_is_written_to_is_found_with_its_views(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], written: list[list[str]], is_plain: bool
) -> None:
    program = torch.export.export(Net(function), (torch.randn(4, 4),), strict=False)
    found = writes.families(program.graph)
    assert [[node.name for node in family] for family in found] == written
    assert all(map(writes.is_plain, found)) == is_plain
