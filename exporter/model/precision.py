"""Eager in another precision: weights are cast or stored, and inputs and outputs keep their dtypes for callers.

torch's kernels of norms and softmax accept half precisions and compute in float32 internally; the golden shows whether
the result is accurate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from exporter.core.precisions import SMALL_WEIGHTS
from exporter.model import kept_layers, small_weights
from exporter.model.tensors import Tensors

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Cast(torch.nn.Module):
    """A flat module that computes in `dtype`: floating-point inputs are cast to it, outputs back to `outputs`."""

    def __init__(self, flat: torch.nn.Module, dtype: torch.dtype, outputs: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.flat, self.dtype, self.outputs = flat, dtype, outputs
        self.rejected: set[tuple[str, tuple[torch.dtype, ...]]] | None = None  # of `mixed_dtypes`, once it has looked

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        """Return the flat module's outputs, in the dtypes of its original precision."""
        given = [t.to(self.dtype) if t.is_floating_point() else t for t in tensors]
        return tuple(t.to(dtype) for t, dtype in zip(self.flat(*given), self.outputs, strict=True))


def cast(flat: torch.nn.Module, precision: str, outputs: tuple[str, ...], kept: Sequence[str] = ()) -> torch.nn.Module:
    """Cast `flat` to a half precision in place, or store its weights in fewer bytes; leave it as it is for others.

    `outputs` are names of dtypes. The layers in `kept` compute in float32. Raises ExportError if the model lacks one of
    them, or has no weights to store.
    """
    return _cast(flat, precision, outputs, kept)[0]


def _cast(
    flat: torch.nn.Module, precision: str, outputs: tuple[str, ...], kept: Sequence[str]
) -> tuple[torch.nn.Module, list[kept_layers.Undo]]:
    if precision in SMALL_WEIGHTS:
        return flat, small_weights.apply(flat, precision, kept)
    dtype = DTYPES.get(precision)
    if dtype is None:
        return flat, []
    spared, undo = kept_layers.keep(flat, kept, dtype) if kept else ([], [])
    ids = set(map(id, spared))
    for tensor in _floating(flat):  # complex tensors would lose their imaginary part
        if id(tensor) not in ids:
            tensor.data = tensor.data.to(dtype)
    return Cast(flat, dtype, tuple(getattr(torch, name) for name in outputs)).eval(), undo


def _floating(module: torch.nn.Module) -> list[torch.Tensor]:
    return [t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()]


@contextlib.contextmanager
def computing(
    flat: torch.nn.Module, precision: str, outputs: tuple[str, ...], kept: Sequence[str] = ()
) -> Iterator[torch.nn.Module]:
    """Yield `flat` in a precision, in which the layers in `kept` compute in float32; afterwards it is as before."""
    tensors = _floating(flat)
    data = [t.data for t in tensors]
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    undo: list[kept_layers.Undo] = []
    try:
        use_tf32(precision == "tf32")
        made, undo = _cast(flat, precision, outputs, kept)
        yield made
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
        for step in reversed(undo):
            step()
        for tensor, own in zip(tensors, data, strict=True):
            tensor.data = own


def use_tf32(wanted: bool) -> None:
    """Set whether a GPU may compute float32 with TF32, which has a mantissa of ten bits."""
    torch.backends.cuda.matmul.allow_tf32 = wanted
    torch.backends.cudnn.allow_tf32 = wanted
