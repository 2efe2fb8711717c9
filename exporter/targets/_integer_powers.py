"""Powers of an integer by integer exponents, such as `2**n`, which AOTInductor computes in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from exporter.targets import _inductor


@contextlib.contextmanager
def of_tensors() -> Iterator[None]:
    """Within the context, let inductor raise a tensor, in place of a number, to the power of integers."""
    import torch._inductor.compile_fx  # first, because its modules import each other
    from torch._inductor import decomposition

    def power(base: Any, exponent: Any) -> Any:
        if isinstance(base, bool) or not isinstance(base, int) or exponent.dtype.is_floating_point:
            return NotImplemented
        if exponent.dtype.is_complex:
            return NotImplemented
        dtype = torch.int64 if exponent.dtype == torch.bool else exponent.dtype
        whole = torch.full((), base, dtype=torch.int64, device=exponent.device).to(dtype)
        return torch.ops.aten.pow.Tensor_Tensor(whole, exponent.to(dtype))

    tables: Any = (decomposition.decompositions, decomposition.fast_random_decomps())  # the second is a cached copy
    with contextlib.ExitStack() as changed:
        for table in tables:
            changed.enter_context(_inductor.with_entry(table, torch.ops.aten.pow.Scalar, power))
        yield
