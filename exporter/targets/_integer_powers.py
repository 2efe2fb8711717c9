"""Powers of an integer by integer exponents, such as `2**n`, which AOTInductor computes in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from exporter.targets import _inductor


@contextlib.contextmanager
def decomposed() -> Iterator[None]:
    """Within the context, let inductor raise a tensor, in place of a number, to the power of integers.

    A base that is a size of the input stays as it is.
    """
    import torch

    def power(base: Any, exponent: Any) -> Any:
        if not isinstance(base, int) or exponent.dtype.is_floating_point or exponent.dtype.is_complex:
            return NotImplemented
        dtype = torch.int64 if exponent.dtype == torch.bool else exponent.dtype
        whole = torch.full((), base, dtype=torch.int64, device=exponent.device).to(dtype)
        return torch.ops.aten.pow.Tensor_Tensor(whole, exponent.to(dtype))

    with _inductor.with_decomposition(torch.ops.aten.pow.Scalar, power):
        yield
