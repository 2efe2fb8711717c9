"""Operators that torch cannot translate to ONNX."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exporter import targets
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.targets import Options


class Light(torch.nn.Module):
    """The light that remains after each sample of a ray, as in radiance fields."""

    def forward(self, opacity: torch.Tensor) -> torch.Tensor:
        return (1 - opacity).cumprod(-1)


class Filters(torch.nn.Module):
    """Medians of an even or odd number of values; in torch, that of an even number is the smaller one in the middle."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = x.reshape(-1).median()
        return (*x.median(-1), *x.median(0, keepdim=True), whole, (x * 8).long().median(1).values)


class Ranks(torch.nn.Module):
    """The rank of each value in its row, and its bin, where values may equal a bound or be NaN."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, _ = x.sort(-1)
        bounds = torch.tensor([-1.0, 0.0, 0.5, 1.0])
        odd = torch.cat([x, x.new_tensor([[0.5, torch.nan]]).expand(x.shape[0], 2)], 1)
        return (
            torch.searchsorted(values, odd),
            torch.searchsorted(values, odd, right=True, out_int32=True),
            torch.searchsorted(bounds, odd, side="right"),
            torch.bucketize(odd, bounds),
            torch.bucketize(odd, bounds, right=True, out_int32=True),
        )


@pytest.mark.parametrize("model", [Filters, Ranks])
def test_medians_and_ranks(model: type[torch.nn.Module], tmp_path: Path) -> None:
    x = torch.randn(3, 5)
    module = FlatModule(model(), flatten_inputs(model(), {"x": x})).eval()
    spec = TensorSpec("x", "float32", ("rows", "columns"))
    expected = module(x)
    outputs = tuple(TensorSpec(f"y{i}", str(y.dtype)[6:], (None,) * y.dim()) for i, y in enumerate(expected))
    promise = Contract("model", (spec,), outputs, {"rows": Range(2, 8), "columns": Range(2, 16)})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None)
    made = targets.get("onnx").export(program, tmp_path / "model.onnx", Options())
    assert "from the exported program" in made.notes[0]
    session = targets.get("onnx").load(tmp_path / "model.onnx", Options())
    for sizes in ((3, 5), (2, 16), (8, 3), (4, 4)):
        other = torch.randn(sizes)
        for got, wanted in zip(session.run((other,)), module(other), strict=True):
            assert got.dtype == wanted.dtype
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("opset", [None, 18, 21])
def test_cumulative_products(opset: int | None, tmp_path: Path) -> None:
    x = torch.rand(3, 5)
    module = FlatModule(Light(), flatten_inputs(Light(), {"opacity": x})).eval()
    specs = [TensorSpec(name, "float32", ("rays", "samples")) for name in ("opacity", "output")]
    promise = Contract("light", (specs[0],), (specs[1],), {"rays": Range(2, 8), "samples": Range(2, 16)})
    program = Program(promise, "cpu", lambda: module, lambda: (x,), None)
    made = targets.get("onnx").export(program, tmp_path / "model.onnx", Options(opset=opset))
    assert "from the exported program" in made.notes[0]
    session = targets.get("onnx").load(tmp_path / "model.onnx", Options())
    for sizes in ((3, 5), (2, 16), (8, 1)):
        opacity = torch.rand(sizes)
        opacity[0, 0] = 1.0
        torch.testing.assert_close(session.run((opacity,)), module(opacity))
