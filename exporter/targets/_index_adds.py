"""aten.index_add in bfloat16, which inductor leaves to torch's kernel.

AOTInductor generates a call with two integers for it, and its executor expects one, so that every call fails with
"Mismatch between ints consumed and num_ints". Here it is decomposed to aten.index_put, as for other dtypes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from exporter.targets import _inductor


@contextlib.contextmanager
def decomposed() -> Iterator[None]:
    """Within the context, let inductor decompose aten.index_add for every dtype."""
    import torch
    from torch._decomp import decompositions

    def index_add(x: Any, dim: int, index: Any, tensor: Any, *, alpha: Any = 1) -> Any:
        usual: Any = decompositions._index_add
        return usual(x, dim, index, tensor, inplace=False, alpha=alpha)

    with _inductor.with_decomposition(torch.ops.aten.index_add.default, index_add):
        yield
