"""Following what a call computes from the tensors that a model held before it, operator by operator.

Unlike a comparison of calls, this shows an influence that their values hide: `torch.where(loud, 4, count - 1)` is
computed from `count` even if every call is loud.

This file is long because memory, operators and reads by Python each have their own rules.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from exporter.core import checks_in_code, source_lines
from exporter.model.state import snapshot
from exporter.model.state.snapshot import MISSING, Place
from exporter.model.tensors import Tensors, parts

Reached = dict[Place, set[Place | None]]  # what is computed from the value at a place; None: an output

_VARYING: Place = (("varying", ""),)  # stands for inputs and random numbers

PRECISE = 65_536  # elements; the parts of a larger storage are not distinguished one by one
PARTS = 64  # number of overwritten parts to distinguish in it
FORGET = 1000  # number of storages after which to look for those that no longer exist

_aten = torch.ops.aten
# Operators that depend on the shape, dtype and device of their first argument, not on its values.
SHAPE_ONLY = frozenset((
    _aten._assert_tensor_metadata.default, _aten.empty_like.default, _aten.full_like.default, _aten.new_empty.default,
    _aten.new_empty_strided.default, _aten.new_full.default, _aten.new_ones.default, _aten.new_zeros.default,
    _aten.ones_like.default, _aten.rand_like.default, _aten.randn_like.default, _aten.zeros_like.default,
))  # fmt: skip
# Operators that replace the values of their first argument without reading them.
_OVERWRITE = frozenset(("copy_", "fill_", "zero_", "bernoulli_", "exponential_", "normal_", "random_", "uniform_"))
# Methods that hand a tensor's values to Python without an operator.
_HANDED_OUT = frozenset((torch.Tensor.__array__, torch.Tensor.numpy, torch.Tensor.tolist))
# Functions whose results a check in the code may ask for, and which then matter for nothing else.
_ASKED = _HANDED_OUT | {
    torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.allclose, torch.Tensor.equal,
    torch.Tensor.is_nonzero, torch.Tensor.item, torch.allclose, torch.equal, torch.is_nonzero,
}  # fmt: skip
# Normalization by the statistics of a batch, with the position of its argument `training` if it has one.
_NORMALIZE = {
    "native_batch_norm": 5, "_native_batch_norm_legit": 5, "cudnn_batch_norm": 5, "miopen_batch_norm": 5,
    "_batch_norm_with_update": None,
}  # fmt: skip


def between(
    module: torch.nn.Module,
    places: Collection[Place],
    step: Callable[[int], Tensors],
    numbers: Iterable[int],
    others: Collection[Place] = (),
) -> Reached:
    """Return what these calls of a model compute from the tensors that it held at these places before each call.

    That may be an output, or a tensor at one of these or of the `others` afterwards. A value that Python reads counts
    as an output, because anything may follow from it, unless a check reads it that only raises or warns.
    """
    reached: Reached = {place: set() for place in places}
    for number in numbers:
        followed = _Followed()
        for place, tensor in _present(module, places):
            followed.begin(place, tensor)
        with followed, _HandedOut(followed):
            outputs = step(number)
        ends: dict[Place | None, set[Place]] = {None: followed.named(followed.read | followed.origins(outputs))}
        for place, tensor in _present(module, (*places, *others)):
            ends[place] = followed.named(followed.origins([tensor]))
        for end, origins in ends.items():
            for place in origins & reached.keys():
                reached[place].add(end)
    return reached


def fixed(
    module: torch.nn.Module,
    places: Collection[Place],
    others: Collection[Place],
    step: Callable[[int], Tensors],
    numbers: Iterable[int],
) -> set[Place]:
    """Return those of these places whose values these calls compute from values at such places and constants alone.

    Inputs of the module, random numbers and the values at `others` are no constants.
    """
    found = set(places)
    for number in numbers:
        followed = _Followed()
        for place, tensor in _present(module, (*places, *others)):
            followed.begin(place, tensor)
        with followed.varying_inputs(module), followed, _HandedOut(followed):
            step(number)
        ends = {place: followed.named(followed.origins([tensor])) for place, tensor in _present(module, places)}
        found &= ends.keys() if followed.called else set()
        while wrong := {place for place in found if not ends[place] <= found}:
            found -= wrong
        if not followed.named(followed.read) <= found:
            return set()
    return found


def _present(module: torch.nn.Module, places: Iterable[Place]) -> Iterator[tuple[Place, torch.Tensor]]:
    for place in places:
        try:
            value = snapshot.take(module, place)
        except MISSING:
            continue
        if isinstance(value, torch.Tensor):
            yield place, value


class _Memory:
    """Which elements of a storage hold values that were computed from which places; bits of a number stand for places.

    `whole` is for all elements or, if they differ, for any of them. A small storage then has an index into `known`, the
    numbers that have occurred, for each element. Of a large one, only parts that were overwritten are distinguished.
    """

    def __init__(self, storage: torch.UntypedStorage, itemsize: int, known: dict[int, int]) -> None:
        self.alive = StorageWeakRef(storage)  # as long as it exists, no other storage gets the same key
        self.itemsize, self.count = itemsize, storage.nbytes() // itemsize
        self.known = known
        self.whole = 0
        self.elements: torch.Tensor | None = None
        self.parts: dict[tuple[Any, ...], int] = {}

    def origins(self, tensor: torch.Tensor) -> int:
        if self.elements is None or not self._fits(tensor):
            return self.parts.get(_extent(tensor), self.whole)
        return functools.reduce(operator.or_, self._numbers(_seen(self.elements, tensor)).values(), 0)

    def add(self, tensor: torch.Tensor, origins: int) -> None:
        if self.elements is None and not self.parts and not origins & ~self.whole:
            return
        in_part = tensor.numel() < self.count <= PRECISE
        if self._fits(tensor) and (in_part or self.elements is not None):
            seen = _seen(self._divided(), tensor)
            for index, number in self._numbers(seen).items():
                if origins & ~number:
                    seen.masked_fill_(seen == index, self._index(number | origins))
        else:
            self.elements = None
        self.whole |= origins
        self.parts = {extent: one | origins for extent, one in self.parts.items()}

    def clear(self, tensor: torch.Tensor) -> None:
        if not self.whole or not self._fits(tensor):  # another dtype than the storage was made with
            return
        if tensor.numel() < self.count <= PRECISE:
            elements = self._divided()
            _seen(elements, tensor).fill_(self._index(0))
            if elements.any():
                return
        elif tensor.numel() < self.count:
            if len(self.parts) < PARTS:
                self.parts[_extent(tensor)] = 0
            return
        self.whole, self.elements, self.parts = 0, None, {}

    def _divided(self) -> torch.Tensor:
        if self.elements is None:
            self.elements = torch.full((self.count,), self._index(self.whole), dtype=torch.int32)
        return self.elements

    def _index(self, number: int) -> int:
        return self.known.setdefault(number, len(self.known))

    def _numbers(self, elements: torch.Tensor) -> dict[int, int]:
        """Return the numbers that occur among elements, by index."""
        found = list(self.known)
        return {index: found[index] for index in elements.unique().tolist()}

    def _fits(self, tensor: torch.Tensor) -> bool:
        return tensor.element_size() == self.itemsize


def _extent(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.element_size(), tensor.storage_offset(), tensor.shape, tensor.stride()


def _seen(elements: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a storage's elements that a tensor shows."""
    return elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class _Followed(TorchDispatchMode):
    """A call in progress: what each storage's values were computed from, and which of the places Python has read."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read = 0
        self.checking = False
        self.called = False
        self._bits: dict[Place, int] = {_VARYING: 1}
        self._memory: dict[int, _Memory] = {}
        self._known = {0: 0}
        self._most = FORGET

    def begin(self, place: Place, tensor: torch.Tensor) -> None:
        """Follow the values that a tensor holds now as those of this place."""
        self._add(tensor, self._bits.setdefault(place, 1 << len(self._bits)))

    def origins(self, tensors: Iterable[torch.Tensor]) -> int:
        """Return the places from which the values of these tensors were computed, as bits."""
        found = 0
        for part in itertools.chain.from_iterable(map(parts, tensors)):
            if (memory := self._memory.get(_key(part))) is not None:
                found |= memory.origins(part)
        return found

    @contextlib.contextmanager
    def varying_inputs(self, module: torch.nn.Module) -> Iterator[None]:
        """Follow the inputs of a module too, as those of a place of their own."""

        def begin(_: Any, args: Any, kwargs: Any) -> None:
            self.called = True
            for tensor in _tensors((args, kwargs)):
                self.begin(_VARYING, tensor)

        handle = module.register_forward_pre_hook(begin, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def named(self, origins: int) -> set[Place]:
        """Return the places that bits stand for."""
        return {place for place, bit in self._bits.items() if bit & origins}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, and note what its results and the tensors that it writes to are computed from."""
        kwargs = dict(kwargs or {})
        written = _written(func, args, kwargs)
        replaced = [tensor for tensor, is_read in written if not is_read]
        unread = [*replaced, *_unread(func, args)]
        given = _tensors((args, kwargs))
        origins = self.origins(one for one in given if not any(one is other for other in unread))
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            origins |= self._bits[_VARYING]
        if _asserts(func):
            origins = 0
        before = {_key(part) for one in given for part in parts(one)}
        for tensor in replaced:
            self._clear(tensor)
        result = func(*args, **kwargs)
        made = _tensors(result)
        if origins:
            for tensor in (*(one for one, _ in written), *(one for one in made if _key(parts(one)[0]) not in before)):
                self._add(tensor, origins)
            if not made and not written and not self.checking:
                self.read |= origins
        return result

    def _add(self, tensor: torch.Tensor, origins: int) -> None:
        for part in parts(tensor):
            if (memory := self._memory.get(_key(part))) is None:
                self._forget()
                memory = _Memory(part.untyped_storage(), part.element_size(), self._known)
                self._memory[_key(part)] = memory
            memory.add(part, origins)

    def _forget(self) -> None:
        """Drop what is known of storages that no longer exist, once there are many."""
        if len(self._memory) >= self._most:
            self._memory = {key: one for key, one in self._memory.items() if not one.alive.expired()}
            self._most = len(self._memory) + FORGET

    def _clear(self, tensor: torch.Tensor) -> None:
        for part in parts(tensor):
            if _key(part) in self._memory:
                self._memory[_key(part)].clear(part)


class _HandedOut(TorchFunctionMode):
    """Notes the places whose values Python gets as an array or a list."""

    def __init__(self, followed: _Followed) -> None:
        super().__init__()
        self.followed = followed

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        if func in _ASKED and not self.followed.checking and _is_checked(func):
            self.followed.checking = True
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self.followed.checking = False
        if func in _HANDED_OUT and not self.followed.checking:
            self.followed.read |= self.followed.origins(args[:1])
        return func(*args, **(kwargs or {}))


def _is_checked(func: Any) -> bool:
    """Return whether a check in the model's code, which only raises or warns, now calls this function."""
    frame = sys._getframe(2)
    frames = source_lines.frames_of_model(frame)
    inside = func is not torch.Tensor.__bool__
    return bool(frames) and frames[0] is frame and checks_in_code.asked(frames, inside) is not None


def _asserts(func: Any) -> bool:
    """Return whether an operator only raises an error on some values."""
    return getattr(func, "_opname", "").startswith(("_assert", "_functional_assert"))


def _key(part: torch.Tensor) -> int:
    return int(part.untyped_storage()._cdata)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[torch.Tensor, bool]]:
    """Return the tensors that an operator writes to, each with whether it also reads them."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # an operator of higher order, such as torch.cond, returns what it computes
        return []
    named = dict(zip((one.name for one in schema.arguments), args, strict=False)) | dict(kwargs)
    overwrites = schema.name.rpartition("::")[2] in _OVERWRITE
    return [
        (tensor, not (one.is_out or (overwrites and index == 0)))
        for index, one in enumerate(schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
        for tensor in _tensors(named.get(one.name))
    ] + [(tensor, True) for tensor in _statistics(func, args)]


def _unread(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return arguments on whose values no result depends."""
    return _tensors(args[:1]) if func in SHAPE_ONLY else _statistics(func, args)


def _statistics(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the running statistics that a normalization in training only updates."""
    name = getattr(func, "_opname", "")
    training = _NORMALIZE.get(name)
    if name not in _NORMALIZE or (training is not None and not args[training]):
        return []
    return _tensors(args[3:5])
