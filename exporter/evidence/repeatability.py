"""Whether eager returns the same outputs at a further call, and why not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import torch

from exporter.evidence import eager
from exporter.evidence.findings import NOT_TO_THE_BIT
from exporter.model.state.search import alike
from exporter.model.state.snapshot import Snapshot, name
from exporter.model.tensors import Tensors, is_inexact

DRAWS = "the model draws random numbers"
HIDDEN = "perhaps it uses the clock, Python's random numbers, or hidden state in a global, a closure or a C++ object"
# Further calls of a model that draws random numbers: most draws of a dropout with a small p change nothing.
DRAWN, DRAWN_S = 200, 5.0

Again = tuple[Callable[[], Tensors], Tensors]  # a call, and what it returned the first time


def unsteady(module: torch.nn.Module, data: Tensors, outputs: Tensors, device: str) -> str:
    """Return why eager returns other outputs at a second call; "" if it is repeatable."""
    numbers, held = generators(device), Snapshot(module)
    again = eager.run(module, data, device)
    if _same(again, outputs):
        return ""
    noise = alike(again, outputs)
    if generators(device) != numbers and not noise:
        return DRAWS
    if changed := [name(path).removeprefix("model.") for path in held.changes()]:
        return f"the model changes its {', '.join(changed[:3])} at each call"
    return NOT_TO_THE_BIT if noise else HIDDEN


def drawn(calls: Sequence[Again]) -> tuple[str, tuple[str, ...]]:
    """Repeat the calls of a model that draws random numbers. Return why it is unsteady, if so, and a note if not."""
    ends, count = time.perf_counter() + DRAWN_S, 0
    for call, outputs in _some(calls):
        count += 1
        if not alike(call(), outputs):
            return DRAWS, ()
        if time.perf_counter() > ends and count >= len(calls):
            break
    return "", (f"{DRAWS}, but {count} more calls returned the same as before",)


def generators(device: str) -> list[bytes]:
    """Return the states of the random number generators that a model on the device draws from."""
    states = [torch.get_rng_state()]
    if torch.device(device).type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return [bytes(state.tolist()) for state in states]


def _some(calls: Sequence[Again]) -> Iterator[Again]:
    for _, one in zip(range(max(DRAWN, len(calls))), cycle(calls), strict=False):
        yield one


def _same(some: Tensors, others: Tensors) -> bool:
    return len(some) == len(others) and all(map(_equal, some, others))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num()) if is_inexact(a) else torch.equal(a, b)
