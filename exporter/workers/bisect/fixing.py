"""Finding the fewest layers that an int8 variant needs in floating point."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from exporter.evidence.golden import Golden
from exporter.model.tensors import Run, Tensors
from exporter.workers.bisect import Fix, search
from exporter.workers.bisect.variants import Builder

REMOVALS = 6  # layers of a set that are tried without, one at a time
ROUNDS = 30  # of timed calls


def find(
    builder: Builder,
    golden: Golden,
    passes: Callable[[Run], bool],
    layers: Sequence[str],
    begun: Callable[[str], None],
) -> Fix | None:
    """Return the fewest of these layers, given worst first, with which the variant passes; None if there are none.

    The shortest beginning of the list that passes is found by bisection. Layers of it that turn out not to be needed
    are left out again.
    """
    given = builder.options.keep_float
    runs: dict[tuple[str, ...], Run] = {}
    known: dict[tuple[str, ...], bool | None] = {}

    def is_enough(kept: tuple[str, ...]) -> bool | None:
        """Return whether the variant passes with these; None if it cannot be built, because nothing is quantized."""
        if kept not in known:
            begun(f"keep {len(kept)} of {len(layers)} layers in float")
            run = _built(builder, (*given, *kept))
            known[kept] = None if run is None else passes(run)
            if run is not None:
                runs[kept] = run
        return known[kept]

    most = len(layers)
    while most and is_enough(tuple(layers[:most])) is None:
        most -= 1
    if not most or not is_enough(tuple(layers[:most])):
        return None
    _, last = search.first_bad(most, lambda at: is_enough(tuple(layers[: at + 1])))
    kept = tuple(layers[: last + 1])
    for layer in kept[:REMOVALS] if len(kept) > 1 else ():
        fewer = tuple(one for one in kept if one != layer)
        kept = fewer if fewer and is_enough(fewer) else kept
    before = _built(builder, given)
    assert before is not None
    return Fix((*given, *kept), _slower(before, runs[kept], golden.cases[0].inputs, builder.options.device))


def _built(builder: Builder, kept: tuple[str, ...]) -> Run | None:
    options = builder.options
    builder.options = replace(options, keep_float=kept)
    try:
        return builder.again()
    except Exception:  # a quantizer may fail for some sets, or find nothing to quantize
        return None
    finally:
        builder.options = options


def _slower(before: Run, after: Run, inputs: Tensors, device: str) -> float:
    """Return the ratio of the median times of both, called in turn."""
    import torch

    placed = tuple(one.to(device) for one in inputs)
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for number in range(ROUNDS + 3):
            for run, seconds in zip((before, after), times, strict=True):
                started = time.perf_counter()
                run(placed)
                if device != "cpu":
                    torch.cuda.synchronize(device)
                if number >= 3:
                    seconds.append(time.perf_counter() - started)
    return statistics.median(times[1]) / statistics.median(times[0])
