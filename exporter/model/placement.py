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
    held = Held(module)
    if held.device is None:
        yield
        return
    try:
        module.to("cpu")
        yield
    finally:
        held.restore()


class Held:
    """The parameters and buffers of a module, with their memory; `device` is None if all are on the CPU."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._kept = [(one._parameters, dict(one._parameters)) for one in module.modules()]
        self._buffers = [(one._buffers, dict(one._buffers)) for one in module.modules()]
        self._data = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]
        self.device = next((data.device for _, data in self._data if data.device.type != "cpu"), None)

    def restore(self) -> None:
        """Put every parameter and buffer back into its place and its memory."""
        if any(type(one)._apply is not torch.nn.Module._apply for one in self._module.modules()):
            self._module.to(self.device)  # such modules move something else too, or are made anew
        for held, own in self._kept:
            held.update(own)
        for buffers, own_buffers in self._buffers:
            buffers.update(own_buffers)
        for tensor, data in self._data:
            tensor.data = data
