"""Inputs whose value a trace keeps, although the contract lets callers give others.

The golden finds what a trace keeps of values that its cases vary. It varies integers within the range of the example,
so that an input such as a sample rate, which is the same in every case, needs other values.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator

import torch

from exporter.model.state import carrying
from exporter.model.state.snapshot import Snapshot
from exporter.model.tensors import Tensors


def kept(
    module: torch.nn.Module, traced: Callable[..., Tensors], example: Tensors, read: Iterable[int]
) -> tuple[int, Tensors] | None:
    """Return the first of these inputs, by index, with which eager computes something else than the trace.

    Also returns the inputs that show it; None if nothing does. Only integers and flags that are all the same in the
    example are changed. Values that eager rejects show nothing.
    """
    held = Snapshot(module)
    tried = ((at, inputs) for at in sorted(read) for inputs in _others(example, at))
    try:
        return next((found for found in tried if _differs(module, traced, found[1])), None)
    finally:
        held.restore()


def _others(example: Tensors, at: int) -> Iterator[Tensors]:
    """Yield the inputs with other values of one input."""
    given = example[at]
    if (
        given.is_floating_point()
        or given.is_complex()
        or not given.numel()
        or bool((given != given.flatten()[0]).any())
    ):
        return
    value = given.flatten()[0].item()
    numbers = (not value,) if given.dtype is torch.bool else dict.fromkeys((value + 1, value - 1, 0, 1, value * 2))
    for number in numbers:
        everywhere = torch.full_like(given, number) if torch.tensor(number).to(given.dtype) == number else given
        once = given.clone()
        once.view(-1)[-1:] = everywhere.flatten()[-1:]
        for other in (everywhere, once):
            if not torch.equal(other, given):
                yield (*example[:at], other, *example[at + 1 :])


def _differs(module: torch.nn.Module, traced: Callable[..., Tensors], inputs: Tensors) -> bool:
    if inputs[0].device.type != "cpu":  # where a wrong index is an error; on a GPU it ends the process
        on_cpu = copy.deepcopy(module).cpu()
        with contextlib.suppress(Exception):
            on_cpu(*(tensor.cpu() for tensor in inputs))
            return _differs_here(module, traced, inputs)
        return False
    return _differs_here(module, traced, inputs)


def _differs_here(module: torch.nn.Module, traced: Callable[..., Tensors], inputs: Tensors) -> bool:
    try:
        wanted = module(*(tensor.clone() for tensor in inputs))
    except Exception:  # the model's code may raise anything
        return False
    if not all(bool(tensor.isfinite().all()) for tensor in wanted if tensor.is_floating_point()):
        return False
    try:
        got = traced(*(tensor.clone() for tensor in inputs))
    except Exception:  # so may TorchScript
        return True
    return not all(map(carrying.agree, got, wanted))
