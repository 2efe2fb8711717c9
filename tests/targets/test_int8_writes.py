"""int8 models that write to a part of a tensor before a layer reads it."""

from __future__ import annotations

import torch

from exporter.targets import _int8


class Shifts(torch.nn.Module):
    """Shifts some channels in time and clears one, as models of videos do, before a convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv1d(4, 8, 3)
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        shifted = torch.zeros_like(x)
        shifted[:, :2, 1:] = x[:, :2, :-1]
        shifted[:, 2:] = x[:, 2:]
        means = self.convolution(shifted).relu_().mean(-1)
        means[:, 0] = 0
        return (self.layer(means),)


class Residual(torch.nn.Module):
    """Writes only to tensors that nothing else uses."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return ((x * 2).add_(x).relu_(),)


def exported(module: torch.nn.Module, x: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch", max=8)},))


def test_a_layer_is_given_what_was_written() -> None:
    module, x = Shifts().eval(), torch.randn(3, 4, 9)
    program = _int8.functional(exported(module, x))
    with torch.no_grad():
        (expected,) = module(x)
        (found,) = _int8.pt2e(program.module(check_guards=False), [(x,)])(x)
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), 0) > 0.999


def test_layers_stay_whole() -> None:
    found = {str(node.target) for node in _int8.functional(exported(Shifts().eval(), torch.randn(3, 4, 9))).graph.nodes}
    assert {"aten.conv1d.default", "aten.linear.default"} <= found
    assert not any(name.partition(".")[2].partition(".")[0].endswith("_") for name in found)


def test_a_program_without_such_writes_is_not_changed() -> None:
    program = exported(Residual(), torch.randn(3, 4))
    assert any(node.target is torch.ops.aten.add_.Tensor for node in program.graph.nodes)
    assert _int8.functional(program) is program
