"""Reading saved programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from exporter.model import mapped_program

Load = Callable[[Path], torch.export.ExportedProgram]


class Flagged(nn.Module):
    """Returns whether it was called before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("called", torch.zeros((), dtype=torch.bool))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.where(self.called, x, -x) + self.count
        self.called.fill_(True)
        self.count.add_(1)
        return y


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("load", [mapped_program.read, mapped_program.load])
def test_a_written_buffer_does_not_share_memory(load: Load, tmp_path: Path) -> None:
    file, x = tmp_path / "flagged.pt2", torch.ones(4)
    torch.export.save(torch.export.export(Flagged(), (x,)), file)
    before = file.read_bytes()
    program = load(file)
    assert all(buffer.untyped_storage().resizable() for buffer in program.state_dict.values())
    module = program.module()
    assert [module(x)[0].item() for _ in range(3)] == [-1, 2, 3]
    assert (bytes(1)[0], bytes([1])[0]) == (0, 1)  # Python has one object for each
    assert file.read_bytes() == before
    assert load(file).module()(x)[0] == -1


def test_a_symbol_of_which_sizes_are_multiples_has_the_value_of_the_example(tmp_path: Path) -> None:
    """Without it, torch 2.11 cannot compile the program that was read."""
    eighth = torch.export.Dim("eighth", min=1, max=8)
    sizes = ({0: torch.export.Dim("batch", max=8), 1: 8 * eighth - 2},)
    program = torch.export.export(nn.Linear(4, 4), (torch.randn(3, 14, 4),), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "net.pt2")
    read = mapped_program.read(tmp_path / "net.pt2")
    (x,) = [node.meta["val"] for node in read.graph.nodes if node.name == "input"]
    known = x.shape[1].node.shape_env.backed_var_to_val
    (symbol,) = x.shape[1].node.expr.free_symbols
    assert known[symbol] == 2
