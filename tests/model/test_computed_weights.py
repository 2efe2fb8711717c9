"""Weights that exported programs compute from other weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from exporter.model import computed_weights

ROWS = torch.export.Dim.DYNAMIC


def exported(model: nn.Module, *shape: int) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model.eval(), (torch.randn(3, *shape),), dynamic_shapes=({0: ROWS},), strict=False)


def same(one: torch.export.ExportedProgram, other: torch.export.ExportedProgram, *shape: int) -> None:
    x = torch.randn(5, *shape)
    torch.testing.assert_close(other.module()(x), one.module()(x), rtol=1e-5, atol=1e-5)


def cleared(tensor: torch.Tensor) -> torch.Tensor:
    """Write to a part of a tensor."""
    tensor.view(36)[:6] = 0
    return tensor


class Normalized(nn.Module):
    """Weights that are computed from others: by weight_norm, by an inverse, and by a sum of one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
        self.square = nn.Parameter(torch.randn(6, 6))
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.shift, torch.Tensor)
        return self.layer(x) @ torch.inverse(self.square) + (self.shift + 1) * self.shift


def test_what_is_computed_from_weights_alone_becomes_a_weight(tmp_path: Path) -> None:
    program = exported(Normalized(), 6)
    folded = computed_weights.fold(program)
    called = [str(node.target) for node in folded.graph.nodes if node.op == "call_function"]
    assert called == ["aten.linear.default", "aten.matmul.default", "aten.add.Tensor"]
    assert sorted(folded.state_dict) == ["folded_0", "folded_1", "folded_2", "layer.bias"]
    same(program, folded, 6)
    torch.export.save(folded, tmp_path / "folded.pt2")
    same(program, torch.export.load(tmp_path / "folded.pt2"), 6)


class Other(nn.Module):
    """Applies a function of a weight, a buffer and the input."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.register_buffer("buffer", torch.randn(6, 6))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.buffer, torch.Tensor)
        return self.function(x, self.weight, self.buffer)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, weight, buffer: x @ weight.t()[:, :3],  # a view
        lambda x, weight, buffer: x @ weight.repeat(1, 2),  # larger
        lambda x, weight, buffer: x @ torch.nn.functional.dropout(weight, training=True),  # random
        lambda x, weight, buffer: x @ (weight * x[:1]),  # of the input
        lambda x, weight, buffer: x @ (buffer.add_(1) * 2),  # changed by the call
        lambda x, weight, buffer: (buffer[: x.shape[0]].copy_(x), x @ buffer.sin())[1],  # in a part, of a dynamic size
        lambda x, weight, buffer: (buffer.view(36).chunk(2)[0].fill_(1), x @ buffer.sin())[1],
        lambda x, weight, buffer: x @ cleared(torch.ones_like(buffer)),
        lambda x, weight, buffer: x @ (cleared(weight * 2) * weight),
        lambda x, weight, buffer: x @ cleared(weight.sigmoid()).sin(),
    ],
)
def test_what_must_be_computed_in_the_call_stays(
    function: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    program = exported(Other(function), 6)
    assert computed_weights.fold(program) is program


def test_a_program_does_not_grow_much(monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported(
        Other(lambda x, weight, buffer: x @ torch.cat([(x @ (weight * buffer[i])).sum(0) * x for i in range(6)]).t()), 6
    )
    folded = computed_weights.fold(program)
    assert len(folded.state_dict) == 6
    same(program, folded, 6)
    monkeypatch.setattr(computed_weights, "SMALL", 0)
    assert computed_weights.fold(program) is program


def test_an_operator_that_fails_stays() -> None:
    program = exported(Other(lambda x, weight, buffer: x @ torch.inverse(weight)), 6)
    program.state_dict["weight"].data.zero_()
    assert computed_weights.fold(program) is program
