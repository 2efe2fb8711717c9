"""Functions of one tensor as ONNX models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from exporter import targets
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.size_range import Range
from exporter.model.capture import Program
from exporter.model.flattening import FlatModule, flatten_inputs
from exporter.targets import Options

Outputs = tuple[torch.Tensor, ...]
Function = Callable[[torch.Tensor], Outputs]


class Calls(torch.nn.Module):
    """Applies a function; pairs of numbers stand for complex ones."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Outputs:
        return tuple(torch.view_as_real(y) if y.is_complex() else y for y in self.function(x))


def translated(
    function: Function, x: torch.Tensor, sizes: dict[str, Range], folder: Path, options: Options | None = None
) -> tuple[Function, Function]:
    """Return a function and its ONNX model, made from the exported program; the last dimensions of `x` are `sizes`."""
    module = FlatModule(Calls(function), flatten_inputs(Calls(function), {"x": x})).eval()
    outputs = tuple(TensorSpec(f"y{i}", str(y.dtype)[6:], (None,) * y.dim()) for i, y in enumerate(module(x)))
    spec = TensorSpec("x", "float32", (*x.shape[: x.dim() - len(sizes)], *sizes))
    program = Program(Contract("calls", (spec,), outputs, sizes), "cpu", lambda: module, lambda: (x,), None)
    made = targets.get("onnx").export(program, folder / "model.onnx", options or Options())
    assert "from the exported program" in made.notes[0], made.notes[0]
    session = targets.get("onnx").load(folder / "model.onnx", Options())
    return module, lambda other: session.run((other,))


def require_same(
    function: Function, sizes: dict[str, Range], others: Iterable[tuple[int, ...]], folder: Path, rtol: float
) -> None:
    """Compare a function of a tensor with the last dimensions `sizes`, 2x4x5 in the example, with its ONNX model."""
    module, run = translated(function, torch.randn(2, 4, 5), sizes, folder)
    for shape in others:
        x = torch.randn(shape)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=rtol, atol=rtol / 10)
