"""Adaptive pooling of images with dynamic sizes, which inductor compiles for the sizes of the example alone.

Its lowerings of aten._adaptive_avg_pool2d and aten.adaptive_max_pool2d take height and width as numbers
(`sizevars.guard_int`). AOTInductor drops the guard, so that the package pools images of another size with the example's
windows. Here they call torch's kernels unless height and width are static.
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
    from torch._inductor import lowering

    aten = torch.ops.aten
    pools: dict[Any, Any] = {
        aten._adaptive_avg_pool2d.default: lowering.fallback_adaptive_avg_pool2d,
        aten.adaptive_max_pool2d.default: lowering.fallback_adaptive_max_pool2d,
    }
    with contextlib.ExitStack() as changed:
        for pool, kernel in pools.items():
            chosen = _choosing(lowering.lowerings[pool], kernel)
            changed.enter_context(_inductor.with_entry(lowering.lowerings, pool, chosen))
        yield


def _choosing(usual: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(x: Any, output_size: Any) -> Any:
        static = all(getattr(size, "is_number", True) for size in x.get_size()[-2:])
        return (usual if static else kernel)(x, output_size)

    return lowered
