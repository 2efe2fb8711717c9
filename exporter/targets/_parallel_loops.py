"""Which loops of inductor's kernels for CPUs share their iterations among the threads."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast


@contextlib.contextmanager
def at_all_sizes() -> Iterator[None]:
    """Let the loops of generated kernels keep all threads busy at the smallest sizes too, such as batch 1.

    Inductor decides by the sizes of the example which nested loops share their iterations among the threads. With a
    dynamic batch and two threads, that is the loop over the batch alone.
    """
    import torch._inductor.compile_fx  # noqa: F401 (first, because its modules import each other)
    from torch._inductor import config
    from torch._inductor.codegen import cpp
    from torch._inductor.virtualized import V

    patched: Any = cpp.CppKernel
    decide = patched.decide_parallel_depth

    def decide_for_least(self: Any, most: Any, threads: int) -> Any:
        found = decide(self, most, threads)
        sizes, settings = V.graph.sizevars, cast(Any, config)
        ranges = self.call_ranges[most.start_depth : most.start_depth + most.parallel_depth]
        least = [_least(size) for size in ranges]
        depth, work = found.parallel_depth, self.size_hint()
        for size, fewest in zip(ranges[:depth], least, strict=False):
            work = work // max(1, sizes.optimization_hint(size, fallback=8192)) * fewest
        while 0 < depth < len(ranges) and math.prod(least[:depth]) < threads <= work // settings.cpp.min_chunk_size:
            depth += 1
        return replace(found, parallel_depth=depth)

    patched.decide_parallel_depth = decide_for_least
    try:
        yield
    finally:
        patched.decide_parallel_depth = decide


def _least(size: Any) -> int:
    """Return the smallest value of a size that inductor knows. A dynamic size that it takes for 2 or more may be 1."""
    from torch._inductor.virtualized import V

    if isinstance(size, int) or size.is_Integer:
        return int(size)
    bound = V.graph.sizevars.shape_env.bound_sympy(size).lower
    return int(bound) if bound.is_Integer and bound > 2 else 1
