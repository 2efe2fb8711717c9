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
