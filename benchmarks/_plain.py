"""A plain script: export BERT with trace, AOTInductor and ONNX; save, load and check each result once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel


class Flat(torch.nn.Module):
    """BERT with tensors as inputs and a tuple of tensors as output."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
        return output.last_hidden_state, output.pooler_output


def trace(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> None:
    """Write a frozen torch.jit.trace."""
    torch.jit.save(torch.jit.freeze(torch.jit.trace(model, inputs, check_trace=False)), str(path))


def program(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], shapes: tuple[dict[int, Any], ...] | None = None
) -> torch.export.ExportedProgram:
    """Return the program that AOTInductor and ONNX start from; without `shapes`, all sizes are fixed."""
    return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)


def package(exported: torch.export.ExportedProgram, path: Path) -> None:
    """Write a frozen AOTInductor package."""
    settings = {"freezing": True, "cpp.dynamic_threads": True}
    torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=settings)


def onnx(exported: torch.export.ExportedProgram, path: Path) -> None:
    """Write an ONNX model with its weights in the file."""
    torch.onnx.export(exported, (), str(path), dynamo=True, external_data=False, verbose=False)


def main(folder: Path) -> None:
    """Export to each format and check the result."""
    torch.manual_seed(0)
    model = Flat(BertModel(BertConfig())).eval().requires_grad_(False)
    shape = (2, 14)
    inputs = (
        torch.randint(1000, 30000, shape),
        torch.ones(shape, dtype=torch.long),
        torch.zeros(shape, dtype=torch.long),
    )
    with torch.no_grad():
        expected = model(*inputs)

        trace(model, inputs, folder / "trace.pt")
        check(torch.jit.load(str(folder / "trace.pt"))(*inputs), expected)

        batch, sequence = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("sequence", min=1, max=512)
        exported = program(model, inputs, ({0: batch, 1: sequence},) * 3)
        package(exported, folder / "compile.pt2")
        check(torch._inductor.aoti_load_package(str(folder / "compile.pt2"))(*inputs), expected)

    onnx(exported, folder / "model.onnx")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    feed = {i.name: t.numpy() for i, t in zip(session.get_inputs(), inputs, strict=True)}
    check(tuple(map(torch.from_numpy, session.run(None, feed))), expected)


def check(got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    """Compare outputs at the example's shape; raise AssertionError if they differ."""
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
