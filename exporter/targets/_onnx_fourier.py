"""Translations to ONNX of Fourier transforms between real and complex numbers whose length is dynamic.

Where the length of ONNX's DFT is no constant, ONNX's inference of shapes takes the dynamic size of the operand for that
of the result, although `length` real numbers become `length // 2 + 1` complex ones. onnxruntime infers shapes when it
loads a model, lets values of the same size share memory, and fails when the sizes differ. So the size of the operand is
hidden from the inference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

aten: Any = torch.ops.aten


def from_pairs(pairs: torch.Tensor, dim: Sequence[int], normalization: int, length: Any) -> torch.Tensor:
    """Return what `aten._fft_c2r` does for numbers that are pairs in a last dimension of size 2.

    `torch.onnx.export` accepts no other translation of an operator that takes complex numbers.
    """
    return aten._fft_c2r.default(torch.view_as_complex(pairs), dim, normalization, length)  # type: ignore[no-any-return]


def with_pairs(graph: fx.Graph) -> None:
    """Let a program compute real numbers from complex ones by `from_pairs`, in place."""
    for node in graph.find_nodes(op="call_function", target=aten._fft_c2r.default):
        numbers: Any = node.args[0]
        with graph.inserting_before(node):
            pairs = graph.call_function(aten.view_as_real.default, (numbers,))
        pairs.meta = {**numbers.meta, "val": torch.view_as_real(numbers.meta["val"]), "tensor_meta": None}
        node.target, node.args = from_pairs, (pairs, *node.args[1:])


def table() -> dict[Any, Callable[..., Any]]:
    """Return the translation of each of these functions, as `torch.onnx.export` takes them."""
    from onnxscript.function_libs.torch_lib.ops import fft

    def to_complex(inp: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
        hides = onesided and not isinstance(inp.shape[dim[-1]], int)
        return fft.aten__fft_r2c(_hidden(inp) if hides else inp, dim, normalization, onesided)

    def to_real(pairs: Any, dim: Sequence[int], normalization: int, length: Any) -> Any:
        hides = not isinstance(length, int) and not isinstance(pairs.shape[dim[-1]], int)
        return fft.aten__fft_c2r(_hidden(pairs) if hides else pairs, dim, normalization, length)

    return {aten._fft_r2c.default: to_complex, from_pairs: to_real}


def _hidden(value: Any) -> Any:
    """Return the same value for which no sizes are inferred: no inference of shapes follows a Max."""
    from onnxscript import opset18

    ops: Any = opset18
    return ops.Reshape(value, ops.Max(ops.Shape(value), ops.Constant(value_ints=[0])), allowzero=1)
