"""Slices such as `x[:, -8:]` and `x[:, :8]`, which take all of a dimension that has fewer than 8 elements.

torch.export decides by the example which of the two cases it is, and narrows the range of the size accordingly. Written
as a selection of `min(size, 8)` elements, one program has both.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode


@dataclass
class Slices:
    """What slices of symbolic sizes there are, and whether they are rewritten.

    A rewritten slice is a copy and not a view: a write to it does not reach the tensor, and a later write to the tensor
    does not reach the slice. `written` tells whether the model does either.
    """

    seen: bool = False
    rewritten: bool = False
    made: list[tuple[torch.Tensor, int]] = field(default_factory=list)  # tensors, with their versions at a slice

    @property
    def written(self) -> bool:
        """Whether a rewritten slice, its tensor, or a view of one of them was written to in the last context."""
        return any(one._version != version for one, version in self.made)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note within this context whether there are such slices, and rewrite them if asked to."""
        self.made.clear()
        with _Watch(self):
            yield

    def take(self, tensor: torch.Tensor, index: Any) -> Any:
        """Return `tensor[index]`."""
        items = list(index) if isinstance(index, tuple) else [index]
        for place, axis in _slices(tensor, items):
            if selection := _selection(items[place], tensor.shape[axis], tensor.device):
                self.seen = True
                if self.rewritten:
                    selected = tensor.index_select(axis, selection())
                    self.made += [(tensor, tensor._version), (selected, selected._version)]
                    tensor = selected
                    items[place] = slice(None)
        return tensor[tuple(items) if isinstance(index, tuple) else items[0]]


class _Watch(TorchFunctionMode):
    """Calls `take` for each index of a tensor.

    A mode, because a `__getitem__` set on torch.Tensor makes it a sequence for good, which torch.tensor would unpack.
    """

    def __init__(self, slices: Slices) -> None:
        super().__init__()
        self.slices = slices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and len(args) == 2 and not kwargs and isinstance(args[0], torch.Tensor):
            return self.slices.take(*args)
        return func(*args, **(kwargs or {}))


def _slices(tensor: torch.Tensor, items: list[Any]) -> list[tuple[int, int]]:
    """Return the place of each slice among the items, and the dimension that it slices.

    Returns none if an item is neither a slice, a number, None, an ellipsis nor a tensor of indices.
    """
    if not any(isinstance(item, slice) for item in items):
        return []
    widths = [_width(item) for item in items]
    if None in widths or sum(item is Ellipsis for item in items) > 1:
        return []
    rest = tensor.dim() - sum(width or 0 for width in widths)
    found, axis = [], 0
    for place, (item, width) in enumerate(zip(items, widths, strict=True)):
        if isinstance(item, slice):
            found.append((place, axis))
        axis += rest if item is Ellipsis else width or 0
    return found if rest >= 0 else []


def _width(item: Any) -> int | None:
    """Return how many dimensions an item of an index consumes; None if that is not known."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, torch.Tensor):
        return None if item.dtype in (torch.bool, torch.uint8) else 1
    return 1 if isinstance(item, (slice, int, torch.SymInt)) and not isinstance(item, bool) else None


def _selection(item: slice, size: Any, device: torch.device) -> Callable[[], torch.Tensor] | None:
    """Return a function that makes the indices that a slice selects; None if it is no slice of this kind."""
    step = 1 if item.step is None else item.step
    if not isinstance(size, torch.SymInt) or not isinstance(step, int) or step < 1:
        return None
    start, stop = (0 if item.start is None else item.start), item.stop
    begin, end = _bound(start, size), _Bound.END if stop is None else _bound(stop, size)
    if begin is None or end is None or _Bound.CLAMPED not in (begin, end):
        return None

    def make() -> torch.Tensor:
        first = _resolved(start, begin, size)
        length: Any
        if end is _Bound.END and begin is _Bound.CLAMPED and statically_known_true(start < 0):
            length = torch.sym_min(size, -start)
        elif begin is _Bound.INSIDE and isinstance(start, int) and start == 0:
            length = _resolved(stop, end, size)
        else:
            length = torch.sym_max(_resolved(stop, end, size) - first, 0)
        indices: torch.Tensor = torch.arange((length + step - 1) // step, device=device) * step + first
        return indices

    return make


class _Bound(enum.Enum):
    """Where a bound of a slice lies, at all sizes; CLAMPED if that depends on the size."""

    INSIDE, BEGINNING, END, CLAMPED = range(4)


def _bound(bound: Any, size: Any) -> _Bound | None:
    """Return where a bound lies; None if that is not known, as of sizes that do not depend on each other."""
    if isinstance(bound, torch.SymInt):
        symbols = bound.node.expr.free_symbols
        if not symbols or not symbols <= size.node.expr.free_symbols:
            return None
    elif not isinstance(bound, int):
        return None
    if statically_known_true(bound >= 0):
        if statically_known_true(bound <= size):
            return _Bound.INSIDE
        return _Bound.END if statically_known_true(bound >= size) else _Bound.CLAMPED
    if statically_known_true(bound < 0):
        if statically_known_true(-bound <= size):
            return _Bound.INSIDE
        return _Bound.BEGINNING if statically_known_true(-bound >= size) else _Bound.CLAMPED
    return None


def _resolved(bound: Any, kind: _Bound, size: Any) -> Any:
    """Return the index that a bound stands for, from 0 to the size."""
    if kind in (_Bound.BEGINNING, _Bound.END):
        return 0 if kind is _Bound.BEGINNING else size
    if statically_known_true(bound < 0):
        return size + bound if kind is _Bound.INSIDE else torch.sym_max(size + bound, 0)
    return bound if kind is _Bound.INSIDE else torch.sym_min(size, bound)
