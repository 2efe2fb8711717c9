"""Casts in the model's own code, such as `x.half()`, as casts to float64 while the model runs in float64.

Without this, a model that casts fails in float64: its weights are in float64, and what it casts is not.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NARROW = (torch.float16, torch.bfloat16, torch.float32)
Made = TypeVar("Made")
_casting: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # modules that run in float64 only so


class AsFloat64(TorchDispatchMode):
    """Within this context, an operator called with a narrower floating `dtype` returns float64."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operator with float64 instead."""
        given = dict(kwargs or {})
        if given.get("dtype") in NARROW:
            given["dtype"] = torch.float64
        return func(*args, **given)


def run(module: torch.nn.Module, compute: Callable[[], Made]) -> Made:
    """Return the result of `compute`, which runs the module in float64, with its casts as they are if that works.

    A module that needs other casts needs them in all later calls too.
    """
    if module not in _casting:
        with contextlib.suppress(Exception):  # a model that was not written for float64 can raise anything
            return compute()
    with AsFloat64():  # type: ignore[no-untyped-call]
        found = compute()
    _casting.add(module)
    return found
