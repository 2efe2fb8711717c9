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

from exporter.model.tensors import Tensors, in_float64, is_inexact

WIDE = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
Made = TypeVar("Made")
MOST_ERROR = 0.1  # of a model in float16 or bfloat16, relative to its outputs; more means that a cast mattered
_casting: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # modules that run in float64 only with other casts


class AsFloat64(TorchDispatchMode):
    """Within this context, an operator that is given a narrower `dtype` by name returns float64 or complex128."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operator with the wide dtype instead."""
        given = dict(kwargs or {})
        if given.get("dtype") in WIDE:
            given["dtype"] = WIDE[given["dtype"]]
        return func(*args, **given)


def run(module: torch.nn.Module, compute: Callable[[], Made]) -> Made:
    """Return the result of `compute`, which runs the module in float64, with its casts as they are if that works.

    A module that needs other casts needs them in all later calls too.
    """
    if not are_changed(module):
        with contextlib.suppress(Exception):  # a model that was not written for float64 can raise anything
            return compute()
    with AsFloat64():  # type: ignore[no-untyped-call]
        found = compute()
    _casting.add(module)
    return found


def are_changed(module: torch.nn.Module) -> bool:
    """Return whether the module's casts are changed when it runs in float64."""
    return module in _casting


def agree(module: torch.nn.Module, outputs: Tensors, references: Tensors) -> bool:
    """Return whether references can be trusted if the module's casts were changed for them.

    A model may need a cast, as in `x.half().long() % 7`. Its outputs are then far from these references.
    """
    return not are_changed(module) or all(
        bool((in_float64(own) - wide).nan_to_num().norm() <= MOST_ERROR * wide.nan_to_num().norm())
        for own, wide in zip(outputs, references, strict=True)
        if is_inexact(own)
    )
