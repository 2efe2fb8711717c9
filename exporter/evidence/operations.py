"""Counts the floating-point operations of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OperatorBase, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

_OPERATORS = (OperatorBase, OpOverloadPacket, type)


def count(call: Callable[[], object]) -> int:
    """Return the number of floating-point operations of `call`, which computes as usual.

    If the call cannot be counted, as that of torch's flex_attention outside torch.compile, these are the operations
    until then.
    """
    with _Counter(display=False) as counter:
        try:
            call()
        except RuntimeError as error:
            if "torch.compile with fullgraph=True found no compiled frames" not in str(error):
                raise
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # the counter made torch.cond compile, which torch 2.11 does not undo
    return counter.get_total_flops()


class _Counter(FlopCounterMode):
    """Counts for the whole call; counting by module would need hooks, which fail if the call itself differentiates."""

    def __enter__(self) -> _Counter:
        self.flop_counts.clear()
        self.mode = _Mode(self)
        self.mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        assert self.mode is not None
        self.mode.__exit__(*error)


class _Mode(_FlopCounterMode):
    """Counts operations in branches and loops too.

    torch's own mode refuses loops, and of `torch.cond` it returns the result of the first branch, whatever the
    condition.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, HigherOrderOperator) or "triton" in func.name():
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return inside(self, func, args, kwargs or {})


def inside(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a higher-order operator, such as a loop, so that the functions that it is given run with the mode."""

    def watched(value: Any) -> Any:
        if not callable(value) or isinstance(value, _OPERATORS):
            return value

        def run(*args: Any, **kwargs: Any) -> Any:
            with mode:
                return value(*args, **kwargs)

        return run

    return func(*map(watched, args), **{name: watched(value) for name, value in kwargs.items()})
