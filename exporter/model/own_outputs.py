"""Outputs that callers may write to: copies of those that belong to the artifact.

A model may return a tensor of its own, and torch.jit makes constants of what a model computes from constants, such as
the anchors of a detector. A caller that scales such an output in place would change the results of later calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from exporter.model.tensors import Tensors


def of_torchscript(outputs: Tensors, inputs: Tensors) -> Tensors:
    """Return the outputs, with copies of those that anything but the outputs and the inputs holds.

    Pass the tensors that TorchScript returned, without further references by C++ code.
    """
    given = {_storage(tensor) for tensor in inputs}
    sharing = Counter(_storage(tensor) for tensor in {id(tensor): tensor for tensor in outputs}.values())

    def is_held(tensor: Any) -> bool:
        if tensor.layout != torch.strided:
            return False
        storage = tensor.untyped_storage()  # one more use
        uses = torch._C._storage_Use_Count(storage._cdata)
        return bool(tensor._use_count() > 1 or uses > sharing[storage._cdata] + 1)

    held = {_storage(tensor) for tensor in outputs if is_held(tensor)} - given
    return tuple(tensor.clone() if _storage(tensor) in held else tensor for tensor in outputs)


def of_module(module: torch.nn.Module) -> Callable[[Tensors, Tensors], Tensors]:
    """Return a function of a module's outputs and inputs.

    It returns the outputs, with copies of those that have the memory of the module's parameters, buffers or attributes.
    """
    attributes = (value for part in module.modules() for value in vars(part).values())
    own = [*module.parameters(), *module.buffers(), *(one for one in attributes if isinstance(one, torch.Tensor))]
    held = {_storage(tensor) for tensor in own} - {0}
    return lambda outputs, _: tuple(tensor.clone() if _storage(tensor) in held else tensor for tensor in outputs)


def _storage(tensor: torch.Tensor) -> int:
    """Return the number of a tensor's storage; 0 for a sparse tensor, which has none."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else 0
