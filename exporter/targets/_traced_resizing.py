"""`interpolate` with a `scale_factor` that a trace computes from sizes, as position embeddings of transformers need.

An operator takes it only as a number, so the trace calls a function of TorchScript, which makes numbers of tensors.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F


def by_tensors(input: torch.Tensor, size: Any = None, scale_factor: Any = None, *_: Any, **__: Any) -> bool:
    """Return whether `interpolate` gets a scale factor that is a tensor, or has one."""
    factors = scale_factor if isinstance(scale_factor, (list, tuple)) else (scale_factor,)
    return size is None and any(isinstance(one, torch.Tensor) for one in factors)


def resize(*args: Any, **named: Any) -> torch.Tensor:
    """Run `torch.nn.functional.interpolate` with a scale factor of tensors."""
    return _resize(*args, **named)


def _resize(
    input: torch.Tensor,  # torch's name of it
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    several: Sequence[Any] = (
        scale_factor if isinstance(scale_factor, (list, tuple)) else (scale_factor,) * (input.dim() - 2)
    )
    factors = torch.stack(
        [
            one.double().cpu() if isinstance(one, torch.Tensor) else torch.full((), one, dtype=torch.float64)
            for one in several
        ]
    )
    found: torch.Tensor = _compiled()(input, factors, mode, align_corners, recompute_scale_factor, antialias)
    return found


def _interpolate(
    x: torch.Tensor,
    factors: torch.Tensor,
    mode: str,
    align_corners: bool | None,
    recompute_scale_factor: bool | None,
    antialias: bool,
) -> torch.Tensor:
    scale_factor: list[float] = factors.tolist()
    return F.interpolate(x, None, scale_factor, mode, align_corners, recompute_scale_factor, antialias)


@functools.cache
def _compiled() -> Callable[..., Any]:
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated
        compiled: Callable[..., Any] = torch.jit.script(_interpolate)
    return compiled
