"""Eager in another precision: weights are cast, and the dtypes of inputs and outputs stay the same for callers.

torch's kernels of norms and softmax accept half precisions and compute in float32 internally; the golden shows whether
the result is accurate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from exporter.model.tensors import Tensors

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Cast(torch.nn.Module):
    """A flat module that computes in `dtype`: floating-point inputs are cast to it, outputs back to `outputs`."""

    def __init__(self, flat: torch.nn.Module, dtype: torch.dtype, outputs: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.flat, self.dtype, self.outputs = flat, dtype, outputs

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        """Return the flat module's outputs, in the dtypes of its original precision."""
        given = [t.to(self.dtype) if t.is_floating_point() else t for t in tensors]
        return tuple(t.to(dtype) for t, dtype in zip(self.flat(*given), self.outputs, strict=True))


def cast(flat: torch.nn.Module, precision: str, outputs: tuple[str, ...]) -> torch.nn.Module:
    """Cast `flat` to a half precision in place; return it unchanged for others. `outputs` are names of dtypes."""
    dtype = DTYPES.get(precision)
    if dtype is None:
        return flat
    for tensor in _floating(flat):  # complex tensors would lose their imaginary part
        tensor.data = tensor.data.to(dtype)
    return Cast(flat, dtype, tuple(getattr(torch, name) for name in outputs)).eval()


def _floating(module: torch.nn.Module) -> list[torch.Tensor]:
    return [t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()]


@contextlib.contextmanager
def computing(flat: torch.nn.Module, precision: str, outputs: tuple[str, ...]) -> Iterator[torch.nn.Module]:
    """Yield `flat` in a precision; its original weights are restored afterwards."""
    tensors = _floating(flat)
    kept = [t.data for t in tensors]
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        use_tf32(precision == "tf32")
        yield cast(flat, precision, outputs)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
        for tensor, data in zip(tensors, kept, strict=True):
            tensor.data = data


def use_tf32(wanted: bool) -> None:
    """Set whether a GPU may compute float32 with TF32, which has a mantissa of ten bits."""
    torch.backends.cuda.matmul.allow_tf32 = wanted
    torch.backends.cudnn.allow_tf32 = wanted
