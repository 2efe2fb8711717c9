"""Adaptive pooling of images with dynamic sizes, which inductor compiles for the sizes of the example alone.

Its lowerings of aten._adaptive_avg_pool2d and aten.adaptive_max_pool2d take height and width as numbers
(`sizevars.guard_int`), and its decompositions of adaptive_max_pool2d and adaptive_max_pool3d test them for the example.
AOTInductor drops these guards, so that the package pools images of another size with the example's windows. Here they
call torch's kernels unless all sizes are static.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from exporter.targets import _inductor


@contextlib.contextmanager
def at_all_sizes() -> Iterator[None]:
    """Within the context, let inductor compile adaptive pooling so that it is right at all sizes."""
    import torch._inductor.compile_fx  # first, because its modules import each other
    from torch._inductor import decomposition, lowering

    aten = torch.ops.aten
    kernels: dict[Any, Any] = {
        aten._adaptive_avg_pool2d.default: lowering.fallback_adaptive_avg_pool2d,
        aten.adaptive_max_pool2d.default: lowering.fallback_adaptive_max_pool2d,
    }
    tables: Any = (decomposition.decompositions, decomposition.fast_random_decomps())  # the second is a cached copy
    decomposed: tuple[Any, ...] = (aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
    with contextlib.ExitStack() as changed:
        for pool, kernel in kernels.items():
            lowered = _if_static(lowering.lowerings[pool], kernel)
            changed.enter_context(_inductor.with_entry(lowering.lowerings, pool, lowered))
        for table in tables:
            for pool in decomposed:
                if pool in table:
                    static = _if_static(table[pool], lambda *_: NotImplemented)
                    changed.enter_context(_inductor.with_entry(table, pool, static))
        yield


def _if_static(usual: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `usual` if the sizes of the image and of the result are static."""

    def act(x: Any, output_size: Any) -> Any:
        image = (x.get_size() if hasattr(x, "get_size") else x.shape)[-len(output_size) :]
        static = all(isinstance(size, int) or getattr(size, "is_number", False) for size in (*image, *output_size))
        return (usual if static else otherwise)(x, output_size)

    return act
