"""Numbers in place of flags, where torch.jit.trace has no words for a flag."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# Functions of a tensor and a number that a flag may stand for; what they give has the tensor's dtype, or is of flags.
_GIVEN = frozenset(("value", "fill_value", "other"))  # names of that number
_FILLING = frozenset((
    torch.Tensor.fill_, torch.Tensor.masked_fill_, torch.Tensor.masked_fill, torch.Tensor.index_fill_,
    torch.Tensor.index_fill, torch.Tensor.new_full, torch.Tensor.eq, torch.Tensor.__eq__, torch.Tensor.ne,
    torch.Tensor.__ne__, torch.fill_, torch.fill, torch.masked_fill, torch.index_fill, torch.full_like, torch.eq,
    torch.ne,
))  # fmt: skip


class NumbersForFlags(TorchFunctionMode):
    """`started.fill_(True)` as `started.fill_(1)`: the trace of the former ends in an internal error of torch's."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if func in _FILLING:
            args = tuple(map(_number, args))
            named = {name: _number(one) if name in _GIVEN else one for name, one in named.items()}
        return func(*args, **named)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value
