"""What a model sets up in its first call: hooks that record hidden states, the flag that says that they exist, and
containers for its state where it held None.

A model with hooks and a flag returns the same in every call, but only if both are kept or both are undone.
"""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from exporter.model.state import snapshot
from exporter.model.state.snapshot import Place, Snapshot


def set_up(module: torch.nn.Module, held: Snapshot, call: Callable[[], object]) -> Snapshot:
    """Call the model, undo everything but hooks and flags that the call left, and return a snapshot of that."""
    held.restore()
    call()
    flags = {path: value for path, value in held.changes().items() if type(value) is bool}
    hooks = snapshot.hooks(module)
    held.restore()
    for current, content in hooks:
        current.clear()
        current.update(content)
    for path, flag in flags.items():
        with contextlib.suppress(*snapshot.MISSING):  # a flag of an object that the call made
            snapshot.put(module, path, flag)
    return Snapshot(module)


@dataclass(frozen=True)
class Container:
    """A tuple, list or other object that the first call leaves where the model held none, or one of another length.

    Its tensors are absent: those of the state are put there. `shared` are objects in it that the model held before.
    """

    place: Place
    value: Any = None
    shared: tuple[Any, ...] = ()

    def holds(self, path: Place) -> bool:
        """Return whether a path leads into the container."""
        return len(path) > len(self.place) and path[: len(self.place)] == self.place

    def fresh(self) -> Any:
        """Return a new copy."""
        return copy.deepcopy(self.value, {id(one): one for one in self.shared})


class _Absent:
    """Stands for a tensor in a container."""

    def __deepcopy__(self, memo: object) -> _Absent:
        return self


def containers(
    module: torch.nn.Module, held: Snapshot, call: Callable[[], object], paths: Iterable[Place]
) -> tuple[Container, ...]:
    """Return the outermost containers on these paths that the first call leaves; undo that call."""
    above = {path: [path[:length] for length in range(1, len(path))] for path in paths}
    held.restore()
    known = snapshot.objects(module)
    before = {place: _form(module, place) for places in above.values() for place in places}
    call()
    made: dict[Place, None] = {}
    for places in above.values():
        made |= dict.fromkeys([place for place in places if _form(module, place) != before[place]][:1])
    found = tuple(_container(module, place, known) for place in made)
    held.restore()
    return found


def _form(module: torch.nn.Module, place: Place) -> tuple[type, int] | None:
    """Return the type and the length of what a model holds at a place; None if it holds nothing there."""
    try:
        value = snapshot.take(module, place)
    except snapshot.MISSING:
        return None
    return type(value), len(value) if isinstance(value, (tuple, list, collections.deque)) else 0


def _container(module: torch.nn.Module, place: Place, known: dict[int, Any]) -> Container:
    value = snapshot.take(module, place)
    inside = snapshot.objects(value)
    if isinstance(value, (list, collections.deque)):  # perhaps the model's own, which the call made longer
        del inside[id(value)]
    shared = tuple(one for key, one in inside.items() if key in known)
    absent = {key: _Absent() for key, one in inside.items() if isinstance(one, torch.Tensor)}
    return Container(place, copy.deepcopy(value, absent | {id(one): one for one in shared}), shared)


def into(made: Sequence[Container], path: Place) -> Container | None:
    """Return the one of these containers that a path leads into, or None."""
    return next((one for one in made if one.holds(path)), None)
