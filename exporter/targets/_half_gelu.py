"""GELU in half precision on a GPU, where CUDA's erf takes most of the time of its kernel.

The error function is approximated with an absolute error below 1.5e-7, so that the result is as accurate as that of
CUDA's, whose 1 + erf loses as much in float32 where it is near 0. Both are then rounded to half precision.

Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 1964, formula 7.1.26.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from exporter.targets import _inductor

FACTORS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
STEP = 0.3275911


@contextlib.contextmanager
def compiled(devices: tuple[str, ...] = ("cuda",)) -> Iterator[None]:
    """Let inductor compute GELU of half-precision tensors on these types of devices so within the context."""
    import torch._inductor.compile_fx  # first, because its modules import each other
    from torch._inductor import decomposition, lowering
    from torch._inductor.virtualized import ops

    gelu: Any = torch.ops.aten.gelu.default
    tables: Any = (decomposition.decompositions, decomposition.fast_random_decomps())  # the second is a cached copy

    def lowered(x: Any, approximate: str = "none") -> Any:
        half = x.get_dtype() in (torch.float16, torch.bfloat16)
        dtype = torch.float32 if half else x.get_dtype()
        compute = _tanh if approximate == "tanh" else _fast if half and x.get_device().type in devices else _usual

        def pointwise(value: Any) -> Any:
            return compute(value, lambda number: ops.constant(number, dtype))

        return lowering.to_dtype(lowering.make_pointwise(pointwise)(lowering.to_dtype(x, dtype)), x.get_dtype())

    with contextlib.ExitStack() as changed:
        for table in tables:
            changed.enter_context(_inductor.without(table, gelu))
        changed.enter_context(_inductor.with_entry(lowering.lowerings, gelu, lowered))
        yield


def _usual(x: Any, number: Callable[[float], Any]) -> Any:
    from torch._inductor.virtualized import ops

    return x * number(0.5) * (number(1) + ops.erf(x * number(math.sqrt(0.5))))


def _tanh(x: Any, number: Callable[[float], Any]) -> Any:
    from torch._inductor.virtualized import ops

    inner = number(math.sqrt(2 / math.pi)) * (x + number(0.044715) * x * x * x)
    return x * number(0.5) * (number(1) + ops.tanh(inner))


def _fast(x: Any, number: Callable[[float], Any]) -> Any:
    from torch._inductor.virtualized import ops

    z = ops.abs(x) * number(math.sqrt(0.5))
    t = ops.reciprocal(number(1) + number(STEP) * z)
    factor = number(FACTORS[-1])
    for one in FACTORS[-2::-1]:
        factor = factor * t + number(one)
    rest = number(0.5) * factor * t * ops.exp(ops.neg(z * z))  # half of 1 - erf(z)
    return x * ops.where(x < number(0), rest, number(1) - rest)
