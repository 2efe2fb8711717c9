"""Weights that appear as float64 but are stored in the model's precision and widened at each use.

Such a weight reports float64 and its size and strides; views of it stay views. Every operation gets the values of
`weight.double()` in the same memory layout, so the outputs have the same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from exporter.core import memory
from exporter.model.tensors import is_inexact, parts

SMALL = 1 << 20  # bytes; smaller weights are not worth it
EVERYTHING = 1 << 62


class Unable(Exception):
    """This model's weights cannot be widened at each use."""


@dataclass
class _Room:
    """Bytes of widened weights that may be kept between uses; `failure` says why the weights may be wrong."""

    left: int = EVERYTHING
    failure: str = ""


_allowed = _Room()


def allow(size: int) -> None:
    """Let float64 weights take this many bytes in this process; the remaining weights are widened at each use."""
    _allowed.left = size


def floating(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return the floating-point and complex parameters and buffers."""
    return [t for t in [*module.parameters(), *module.buffers()] if is_inexact(t)]


def fits(module: torch.nn.Module) -> bool:
    """Return whether all weights may be held in float64 at once."""
    return _bytes(floating(module)) <= _allowed.left


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the size in bytes of tensors in float64, or in complex128."""
    return sum(part.numel() * (16 if part.is_complex() else 8) for tensor in tensors for part in parts(tensor))


def allow_all_where_they_fit(module: torch.nn.Module) -> None:
    """Allow all weights in float64 after widening at each use failed. Raises MemoryError if they do not fit."""
    needed, there = _bytes(floating(module)), memory.free()
    if needed > there:
        raise MemoryError(f"weights in float64 need {needed / 1e9:.1f} GB, {there / 1e9:.1f} GB are free")
    allow(EVERYTHING)


@contextlib.contextmanager
def at_each_use(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Widen a module's large weights at each use within the context; yields the remaining weights, and complex ones.

    Afterwards the module has its original tensors again. Raises Unable if C++ code refers to a tensor, or if an
    operation wrote to one.
    """
    tensors = floating(module)
    dense = [t for t in tensors if t.layout is torch.strided and t.is_floating_point()]
    large = [t for t in dense if t.untyped_storage().nbytes() >= SMALL]
    others = [t for t in tensors if not any(t is one for one in large)]
    room = _Room(_allowed.left - _bytes(others))
    swapped: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for tensor in large:
            stand_in: Any = _Wide(_Root(tensor.detach(), room))
            stand_in._is_param = isinstance(tensor, torch.nn.Parameter)
            _exchange(tensor, stand_in)
            swapped.append((tensor, stand_in))
        if sum(isinstance(t, _Wide) for t in floating(module)) != len(large):
            raise Unable("TorchScript holds its own references to weights")
        yield others
    finally:
        for tensor, stand_in in swapped:
            _exchange(tensor, stand_in)
    if room.failure:
        raise Unable(room.failure)


def _exchange(tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
    """Swap two tensors for everything that refers to them. Raises Unable if C++ refers to one of them.

    Unlike torch.utils.swap_tensors, this allows weak references; those that torch.export and recurrent layers leave
    behind then see the stand-in, like all other references.
    """
    try:
        torch._C._swap_tensor_impl(tensor, stand_in)
    except RuntimeError as error:  # TorchScript holds it, or a view of it exists
        raise Unable(str(error)) from error
    one, other = cast(Any, tensor), cast(Any, stand_in)
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__


class _Root:
    """A weight in its stored precision, and cached in float64 if there is room."""

    def __init__(self, narrow: torch.Tensor, room: _Room) -> None:
        self.narrow, self.room = narrow, room
        self._wide: torch.Tensor | None = None

    def wide(self) -> torch.Tensor:
        """Return what `tensor.data.double()` returns."""
        if self._wide is not None:
            return self._wide
        made = self.narrow.double()
        size = made.untyped_storage().nbytes()
        if size <= self.room.left:
            self.room.left -= size
            self._wide = made
        return made


class _Wide(torch.Tensor):
    """A stand-in for a weight or a view of it."""

    _root: _Root
    _geometry: torch.Tensor  # a float64 tensor without data
    _is_param: bool

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, root: _Root, geometry: torch.Tensor | None = None) -> _Wide:
        if geometry is None:
            geometry = torch.empty_like(root.narrow, dtype=torch.float64, device="meta")
        made: _Wide = torch.Tensor._make_wrapper_subclass(
            cls,
            geometry.size(),
            strides=geometry.stride(),
            storage_offset=geometry.storage_offset(),
            dtype=torch.float64,
            device=root.narrow.device,
        )
        made._root, made._geometry = root, geometry
        return made

    def __init__(self, *_: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, _Wide)]
        if function.is_view and isinstance(args[0], _Wide):
            views = function(args[0]._geometry, *args[1:], **kwargs)
            return pytree.tree_map_only(torch.Tensor, lambda view: cls(args[0]._root, view), views)
        wide = {id(root): root.wide() for root in (one._root for one in given)}
        if _writes(function, args, kwargs):
            given[0]._root.room.failure = f"{function} writes to a weight"
            raise Unable(given[0]._root.room.failure)

        def widened(one: _Wide) -> torch.Tensor:
            at = one._geometry
            return wide[id(one._root)].as_strided(at.size(), at.stride(), at.storage_offset())

        args, kwargs = pytree.tree_map_only(_Wide, widened, (tuple(args), kwargs))
        return function(*args, **kwargs)


def _writes(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation writes to a stand-in; the write would not reach the weight."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[place] if place < len(args) else None)
            if any(isinstance(leaf, _Wide) for leaf in pytree.tree_leaves(value)):
                return True
    return False
