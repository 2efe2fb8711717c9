"""The file that is written weight by weight has the same content as one that is written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from exporter.core.errors import ExportError
from exporter.targets import _onnx_file

WEIGHTS: dict[str, Any] = {
    "float": np.arange(3000, dtype=np.float32).reshape(30, 100),
    "small": np.arange(100, dtype=np.float32).reshape(1, 100),
    "half": np.arange(1000, dtype=np.float16).reshape(10, 100),
    "bfloat": np.arange(1000).astype(ml_dtypes.bfloat16).reshape(10, 100),
    "flags": np.arange(2000).reshape(20, 100) % 3 == 0,
    "numbers": np.arange(20_000, dtype=np.int64).reshape(200, 100),
    "nibbles": np.arange(4000).reshape(40, 100).astype(ml_dtypes.int4),
    "none": np.zeros((0, 100), np.float32),
    "scalar": np.array(2.0, np.float32),
}


def model(operator: str = "Add") -> ir.Model:
    """A model that adds `float`, `small` and an input with a default; other weights are not used."""
    nodes = [
        onnx.helper.make_node(operator, ["x", "float"], ["first"]),
        onnx.helper.make_node("Add", ["first", "small"], ["second"]),
        onnx.helper.make_node("Add", ["second", "default"], ["y"]),
    ]
    x, default, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (30, 100)) for name in ("x", "default", "y")
    )
    arrays = {**WEIGHTS, "default": np.full((30, 100), 7, np.float32)}
    weights = [ir.to_proto(ir.tensor(array, name=name)) for name, array in arrays.items()]
    weights.append(onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [1], [b"a" * 3000]))
    graph = onnx.helper.make_graph(nodes, "sums", [x, default], [y], weights)
    made = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)])
    onnx.helper.set_model_props(made, {"contract": "é" * 500})
    return ir.from_proto(made)


def test_the_content_is_that_of_a_file_written_whole(tmp_path: Path) -> None:
    whole, streamed = tmp_path / "whole.onnx", tmp_path / "streamed.onnx"
    ir.save(model(), whole)
    _onnx_file.save(model(), streamed)
    assert onnx.load(streamed) == onnx.load(whole)
    assert streamed.stat().st_size == whole.stat().st_size
    x = np.ones((30, 100), np.float32)
    session = ort.InferenceSession(streamed)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + WEIGHTS["float"] + WEIGHTS["small"] + 7)


def test_a_model_that_is_not_valid_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(onnx.checker.ValidationError, match="No Op registered for Unknown"):
        _onnx_file.save(model("Unknown"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


class Tied(torch.nn.Module):
    """Two layers with the same weight, one whose weight is bfloat16, and one within a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(40, 40) for _ in range(3))
        self.second.weight = self.first.weight
        self.fourth = torch.nn.Linear(40, 40, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fourth(self.second(self.first(x)).bfloat16()).float()
        return torch.cond(y.sum() > 0, lambda y: self.third(y), lambda y: y - 1, (y,))


def test_weights_of_torch_are_written_as_torch_writes_them(tmp_path: Path) -> None:
    with torch.no_grad():
        program = torch.export.export(Tied().eval().requires_grad_(False), (torch.randn(2, 40),))
        made = torch.onnx.export(program, (), dynamo=True, verbose=False)
    assert made is not None
    made.save(tmp_path / "whole.onnx")
    _onnx_file.save(made.model, tmp_path / "streamed.onnx")
    assert onnx.load(tmp_path / "streamed.onnx") == onnx.load(tmp_path / "whole.onnx")


def test_a_file_beyond_the_limit_of_protobuf_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_onnx_file, "LIMIT", 100_000)
    with pytest.raises(ExportError, match="protobuf's limit is 2 GB"):
        _onnx_file.save(model(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
