"""Sizes that are rounded, in programs that torch.export saves and loads again."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.commands import Run

from exporter.core.size_range import Range
from exporter.model import rounded_sizes

ROUNDINGS: dict[str, Callable[[int], int]] = {
    "floor": lambda n: math.floor(n * 0.7),
    "floor of a negative number": lambda n: -math.floor(-n / 5),
    "ceil": lambda n: math.ceil(n * 0.7),
    "ceil of a negative number": lambda n: 9 - math.ceil(-n / 7 - 3),
    "round": lambda n: round(n * 0.7),
    "round halves": lambda n: round(n / 2),
    "round a negative number": lambda n: -round(-n / 4),
    "round just below a half": lambda n: round(n * 0.49999999999999994) + 1,
    "abs": lambda n: abs(n - 20),
    "several": lambda n: round(n / 2) + math.ceil(n / 3),
}


NET = """
import math, torch

class Net(torch.nn.Module):
    def forward(self, x):
        length = x.shape[1]
        return x[:, : math.ceil(length * 0.7)].sum(1) + round(length / 2) + math.floor(length / 3)

class net:
    sizes = {"length": (4, 40)}

    @staticmethod
    def load(weights):
        return Net().eval()

    @staticmethod
    def inputs(length=11):
        return {"x": torch.ones(2, length)}
"""


class Counted(torch.nn.Module):
    """Computes with a size, and returns it."""

    def __init__(self, count: Callable[[int], int]) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        count = self.count(x.shape[0])
        return x + count, count


@pytest.mark.parametrize("name", ROUNDINGS)
def test_a_saved_program_rounds_as_python_does(name: str) -> None:
    size = torch.export.Dim("n", min=2, max=99)
    model = Counted(ROUNDINGS[name])
    program = torch.export.export(model, (torch.randn(11),), dynamic_shapes=({0: size},))
    rounded_sizes.make_storable(program)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    module = torch.export.load(file).module()
    for n in range(2, 99):
        added, count = module(torch.zeros(n))
        assert (n, added.tolist(), count) == (n, [model.count(n)] * n, model.count(n))


class Branches(torch.nn.Module):
    """Rounds a size within the graph of a branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + math.ceil(x.shape[0] / 2), lambda x: x - 1, (x,))


def test_rounding_inside_branches() -> None:
    size = torch.export.Dim("n", min=2, max=99)
    program = torch.export.export(Branches(), (torch.randn(11),), dynamic_shapes=({0: size},))
    rounded_sizes.make_storable(program)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    module = torch.export.load(file).module()
    for n in (3, 5, 6, 9):
        for x in (torch.ones(n), -torch.ones(n)):
            assert torch.equal(module(x), Branches()(x))


def test_the_target_rounds_in_python_and_cpp(run: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    manifest, _ = run(f"{tmp_path}/net:net", "export")
    (variant,) = manifest.variants
    assert variant.status == "passed", variant.reason
    assert variant.contract.symbols["length"] == Range(4, 40)


def test_other_nodes_stay() -> None:
    """Rounding to digits has no such equivalent, and rounding of tensors is an operator."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.round(x) * round(x.shape[0] * 0.3, 1)

    size = torch.export.Dim("n", min=2, max=99)
    program = torch.export.export(Model(), (torch.randn(11),), dynamic_shapes=({0: size},))
    before = str(program.graph)
    rounded_sizes.make_storable(program)
    assert str(program.graph) == before
