"""Floor division of floating tensors in exported programs and in what is made from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.translating import translated
from torch import nn

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model import capture
from exporter.model.flattening import FlatModule, flatten_inputs

GRID = torch.tensor([0.4, 0.9, 1.0, 1.2, 2.0, 3.0, -1.0, -0.35, 0.0, 1e30, torch.inf, torch.nan])


class Voxels(nn.Module):
    """Divides points by numbers, tensors and sizes, in new tensors and in place."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = x.clone()
        held //= 0.1
        other, wider = x.clone(), x.clone()
        return (
            torch.div(x, 0.1, rounding_mode="floor"),
            x // -0.3,
            x.floor_divide(torch.tensor(0.7)),
            torch.div(x[:, None], x[None] + 0.05, rounding_mode="floor"),
            x // 0.0,
            torch.tensor([7, -7]) // 0.1,
            x // x.shape[0],
            x.double() // 0.1,
            held,
            other.div_(0.1, rounding_mode="floor"),
            wider.floor_divide_(torch.tensor([0.1], dtype=torch.float64)),
        )


def captured() -> tuple[FlatModule, capture.Captured]:
    flat = FlatModule(Voxels(), flatten_inputs(Voxels(), {"x": GRID})).eval()
    spec = TensorSpec("x", "float32", ("points",))
    return flat, capture.capture(flat, (GRID,), Contract("voxels", (spec,), (), {"points": Range(4, 40)}))


@pytest.mark.parametrize("points", [12, 5])
def test_the_program_is_eager(points: int) -> None:
    flat, found = captured()
    x = GRID[:points].clone()
    for got, wanted in zip(found.program.module()(x), flat(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_a_saved_program_is_eager(tmp_path: Path) -> None:
    flat, found = captured()
    torch.export.save(found.program, tmp_path / "voxels.pt2")
    for got, wanted in zip(torch.export.load(tmp_path / "voxels.pt2").module()(GRID), flat(GRID), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_a_package_is_eager(tmp_path: Path) -> None:
    flat, found = captured()
    package = torch._inductor.aoti_compile_and_package(found.program, package_path=str(tmp_path / "voxels.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for got, wanted in zip(run(GRID), flat(GRID), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_an_onnx_model_is_eager(tmp_path: Path) -> None:
    module, run = translated(Voxels(), GRID, {"points": Range(4, 40)}, tmp_path)
    for got, wanted in zip(run(GRID), module(GRID), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_half_precisions_stay_as_they_are() -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.half() // 0.1

    flat = FlatModule(Half(), flatten_inputs(Half(), {"x": GRID})).eval()
    promise = Contract("half", (TensorSpec("x", "float32", ("points",)),), (), {"points": Range(4, 40)})
    program = capture.capture(flat, (GRID,), promise).program
    assert not any(node.target is torch.ops.aten.fmod.Tensor for node in program.graph.nodes)
