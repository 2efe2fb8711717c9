"""Inputs whose value a trace keeps, although the contract lets callers give others.

The golden finds what a trace keeps of values that its cases vary. It varies integers within the range of the example,
so that an input such as a sample rate, which is the same in every case, needs other values. It has few cases, so that
a branch that few inputs take needs more of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from exporter.core import time_limit
from exporter.model import drawing
from exporter.model.state import carrying
from exporter.model.state.snapshot import Snapshot, copied
from exporter.model.tensors import Tensors
from exporter.targets import _tracing

NEIGHBOURS = 2  # the first values to try of an integer
DRAWN, SEARCH_S = 300, 10.0


def kept(
    module: torch.nn.Module, traced: Callable[..., Tensors], example: Tensors, read: Iterable[int]
) -> tuple[int, Tensors] | None:
    """Return the first of these inputs, by index, with which eager computes something else than the trace.

    Also returns the inputs that show it; None if nothing does. Only integers and flags that are all the same in the
    example are changed. Values that eager rejects show nothing; if it rejects the next larger and smaller integer, the
    value is tied to a size, and no other is tried.
    """
    constant = [at for at in sorted(read) if _is_constant(example[at])]
    if not constant or (found := _on_cpu(module, traced, example)) is None:
        return None
    module, traced, example = found
    held = Snapshot(module)
    for at in constant:
        accepted = example[at].dtype is torch.bool
        for number, inputs in enumerate(_others(example, at)):
            if number == NEIGHBOURS and not accepted:
                break
            wanted = _outputs(module, inputs)
            held.restore()
            accepted |= wanted is not None
            if wanted is not None and not _agrees(traced, inputs, wanted):
                return at, inputs
    return None


def disagrees_for_drawn(
    module: torch.nn.Module, traced: Callable[..., Tensors], examples: Sequence[Tensors], read: Iterable[int]
) -> bool:
    """Return whether eager computes something else than the trace for other values of these inputs, by index.

    The first of the examples is the one of the trace; the others have other sizes. Values are drawn at random in turn,
    DRAWN times or, if a call takes long, for SEARCH_S seconds. An example for which eager and the trace differ anyway,
    or eager from itself, as random models do, shows nothing.
    """
    ends = time.monotonic() + SEARCH_S
    if (found := _on_cpu(module, traced, examples[0])) is None:
        return False
    module, traced, first = found
    held = Snapshot(module)
    given = [first, *(tuple(tensor.cpu() for tensor in other) for other in examples[1:])]
    usual = [example for example in given if _is_steady(module, held, traced, example)]
    generator = torch.Generator().manual_seed(0)
    for number, example in enumerate(itertools.islice(itertools.cycle(usual), DRAWN if usual else 0)):
        other = drawing.drawn(example, generator)
        if number % 3 == 2:  # no number of some examples is negative
            other = tuple(-tensor if tensor.is_floating_point() else tensor for tensor in other)
        inputs = tuple(other[at] if at in read else tensor for at, tensor in enumerate(example))
        wanted = _outputs(module, inputs)
        held.restore()
        if wanted is not None and not _agrees(traced, inputs, wanted):
            return True
        if time.monotonic() > ends:
            break
    return False


def _is_steady(module: torch.nn.Module, held: Snapshot, traced: Callable[..., Tensors], example: Tensors) -> bool:
    """Return whether eager returns the same twice, and the trace too."""
    first = _outputs(module, example)
    held.restore()
    again = _outputs(module, example)
    held.restore()
    if first is None or again is None or not all(map(carrying.agree, again, first)):
        return False
    return _agrees(traced, example, first)


def _on_cpu(
    module: torch.nn.Module, traced: Callable[..., Tensors], example: Tensors
) -> tuple[torch.nn.Module, Callable[..., Tensors], Tensors] | None:
    """Return all three on the CPU, since a wrong index ends the process on a GPU; None if the model needs a GPU."""
    if example[0].device.type == "cpu":
        return module, traced, example
    try:
        module, example = copied(module, "cpu"), tuple(tensor.cpu() for tensor in example)
        return module, _tracing.trace(module, example), example
    except Exception:  # the model's code may raise anything
        return None


def _is_constant(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds one integer or flag, perhaps several times."""
    if tensor.is_floating_point() or tensor.is_complex() or not tensor.numel():
        return False
    return bool((tensor == tensor.flatten()[0]).all())


def _others(example: Tensors, at: int) -> Iterator[Tensors]:
    """Yield the inputs with other values of one input: in all its elements, and in the last one."""
    given = example[at]
    value: Any = given.flatten()[0].item()
    numbers = [not value]
    if given.dtype is not torch.bool:
        bounds = torch.iinfo(given.dtype)
        wanted = (value + 1, value - 1, 0, 1, value * 2)
        numbers = [number for number in dict.fromkeys(wanted) if bounds.min <= number <= bounds.max and number != value]
    everywhere = [torch.full_like(given, number) for number in numbers]
    once = [torch.cat((given.flatten()[:-1], other.flatten()[-1:])).reshape(given.shape) for other in everywhere]
    for other in (*everywhere[:NEIGHBOURS], *once, *everywhere[NEIGHBOURS:]):
        yield (*example[:at], other, *example[at + 1 :])


def _outputs(module: torch.nn.Module, inputs: Tensors) -> Tensors | None:
    """Return what eager returns; None if it raises, or if that is not finite."""
    try:
        with time_limit.stop_after(SEARCH_S):  # a loop may never end
            outputs: Tensors = module(*(tensor.clone() for tensor in inputs))
    except (Exception, time_limit.OutOfTime):  # the model's code may raise anything
        return None
    return outputs if all(bool(tensor.isfinite().all()) for tensor in outputs) else None


def _agrees(traced: Callable[..., Tensors], inputs: Tensors, wanted: Tensors) -> bool:
    try:
        got = traced(*(tensor.clone() for tensor in inputs))
    except Exception:  # so may TorchScript
        return False
    return all(map(carrying.agree, got, wanted))
