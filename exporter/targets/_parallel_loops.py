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

    patched: Any = cpp.CppKernel
    decide = patched.decide_parallel_depth

    def decide_for_least(self: Any, most: Any, threads: int) -> Any:
        found = decide(self, most, threads)
        settings, depth = cast(Any, config), found.parallel_depth
        least = [_least(size) for size in self.call_ranges[most.start_depth :][: most.parallel_depth]]
        work = math.prod(map(_least, self.call_ranges)) // settings.cpp.min_chunk_size
        while 0 < depth < len(least) and math.prod(least[:depth]) < threads <= work:
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
    size = V.graph.sizevars.remove_precomputed_replacements(size)
    bounds = {one: V.graph.sizevars.shape_env.bound_sympy(one) for one in size.free_symbols}
    found = size.subs({one: bound.lower if bound and bound.lower > 2 else 1 for one, bound in bounds.items()})
    return int(found) if found.is_Integer else 1
