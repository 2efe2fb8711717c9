"""Batch normalization that updates its running statistics, as operations that every target translates.

`aten.batch_norm` writes to the statistics, but its schema does not say so. What reads an exported graph therefore drops
the update (TorchScript, if nothing uses the result; torch.onnx always).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_KERNEL = inspect.Signature([
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name in ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn")
])  # fmt: skip
_SIGNATURES = {torch.batch_norm: _KERNEL, functional.batch_norm: inspect.signature(functional.batch_norm)}


class Written(TorchFunctionMode):
    """Computes and updates running statistics with tensor operations while a graph is captured."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _SIGNATURES:
            bound = _SIGNATURES[func].bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            given = bound.arguments
            if given["training"] and given["running_mean"] is not None:
                return _normalize(given)
        return func(*args, **(kwargs or {}))


def _normalize(given: dict[str, Any]) -> torch.Tensor:
    x, momentum = given["input"], given["momentum"]
    others = [0, *range(2, x.dim())]
    mean, variance = x.mean(others), x.var(others, correction=0)
    for kept, new in ((given["running_mean"], mean), (given["running_var"], x.var(others))):
        kept.mul_(1 - momentum).add_(new.to(kept.dtype), alpha=momentum)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    made: torch.Tensor = (x - mean.view(shape)) * torch.rsqrt(variance + given["eps"]).view(shape)
    if given["weight"] is not None:
        made = made * given["weight"].view(shape)
    return made if given["bias"] is None else made + given["bias"].view(shape)
