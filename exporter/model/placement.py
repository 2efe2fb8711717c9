"""Run a model on the CPU for a while, without a trace of it afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def on_cpu(module: torch.nn.Module) -> Iterator[None]:
    """Hold a module on the CPU within the context. At the end, each parameter and buffer is in its own memory again.

    Moved back with `Module.to`, they would be in new memory, and buffers would be new tensors: `state.snapshot` would
    take all of them for changed. Changes that the module makes to them on the CPU are lost.
    """
    held = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]
    if all(data.device.type == "cpu" for _, data in held):
        yield
        return
    owners = list(module.modules())
    kept = [(one._parameters, dict(one._parameters), one._buffers, dict(one._buffers)) for one in owners]
    module.to("cpu")
    try:
        yield
    finally:
        for parameters, own_parameters, buffers, own_buffers in kept:
            parameters.update(own_parameters)
            buffers.update(own_buffers)
        for tensor, data in held:
            tensor.data = data
