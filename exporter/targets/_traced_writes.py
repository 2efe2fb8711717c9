"""Writes by index, such as `cache[:, :, positions] = values`, whose sizes a trace would fix.

torch views the values without their leading dimensions of size 1 and expands them to the written part, both with the
sizes of the example.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch


def write(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Run `tensor[index] = value` so that a trace keeps the sizes of `value`."""
    if isinstance(value, torch.Tensor) and value.dim() and not tensor.is_quantized:
        for size in _sizes(value):
            if size != 1:
                break
            value = value.squeeze(0)  # which does nothing at a size at which it is not 1
        if all(map(_is_of_a_view, index if isinstance(index, tuple) else (index,))):
            tensor[index].copy_(value)  # expands the value itself
            return
    tensor[index] = value


def _is_of_a_view(one: Any) -> bool:
    """Return whether an item of an index keeps a view of the tensor."""
    if isinstance(one, torch.Tensor):
        return one.dim() == 0 and one.dtype == torch.int64
    return one is None or (isinstance(one, (int, slice, EllipsisType)) and not isinstance(one, bool))


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a shape as numbers, which are tensors while a trace is recorded."""
    tracer: Any = torch._C
    state = tracer._get_tracing_state()
    tracer._set_tracing_state(None)
    try:
        return tuple(tensor.shape)
    finally:
        tracer._set_tracing_state(state)
