"""Gated linear units over a dimension with a dynamic size, for which inductor compiles the example's size.

Its lowering of aten.glu takes half of the size as a number (`sizevars.guard_int`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from exporter.targets import _inductor


@contextlib.contextmanager
def at_all_sizes() -> Iterator[None]:
    """Within the context, let inductor compile aten.glu so that it is right at all sizes."""
    import torch

    def glu(x: Any, dim: int = -1) -> Any:
        if isinstance(x.shape[dim], int):
            return NotImplemented
        half = x.shape[dim] // 2
        return x.narrow(dim, 0, half) * x.narrow(dim, half, half).sigmoid()

    with _inductor.with_decomposition(torch.ops.aten.glu.default, glu):
        yield
