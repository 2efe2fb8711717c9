"""Extracting the state that one call of a model leaves for the next, so that it can be carried.

A model that keeps state becomes a function of its inputs and its state that returns its outputs and the next state.
Every target exports this function; what carries the state is decided afterwards.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exporter.core.contract_records import STATE, Dim, StateTensor, Values
from exporter.core.errors import ArtifactError, ExportError
from exporter.core.limits import LARGEST
from exporter.model.flattening import FlatInputs, FlatModule
from exporter.model.state import first_call, snapshot
from exporter.model.state.first_call import Container
from exporter.model.state.snapshot import MISSING, Place
from exporter.model.tensors import Tensors

LARGEST_INITIAL = 1_000_000  # bytes; limit for a value that is not uniform: a manifest repeats it for each variant

REMEDY = (
    "keep it in a buffer of fixed size and dtype from the start (register_buffer), or take and return it in forward"
)


@dataclass(frozen=True)
class State:
    """Where a model keeps its state, and its values before the first call.

    `initial` has one tensor for each of `paths`, with size 1 in dimensions that follow the sizes of a call. `settled`
    are plain values as they are from the second call on. `dropped` are values that change but are never read.
    `doubted` are those of `paths` that no observed call read, but that are not proven to be unread. `hooked` says
    whether the first call registers hooks, which are to be kept; `made` are the containers of state that it
    makes (see `exporter.model.state.first_call`).
    """

    paths: tuple[Place, ...]
    initial: Tensors
    settled: tuple[tuple[Place, Any], ...] = ()
    dropped: tuple[Place, ...] = ()
    doubted: tuple[Place, ...] = ()
    hooked: bool = False
    made: tuple[Container, ...] = ()

    @property
    def known(self) -> frozenset[Place]:
        """Return every place that is known to change."""
        return frozenset((*self.paths, *(path for path, _ in self.settled), *self.dropped))

    def without(self, unread: Collection[Place]) -> State:
        """Return the state with these unread places dropped, unless they are in containers, which are kept whole."""
        unread = [path for path in unread if not first_call.into(self.made, path)]
        kept = [(path, tensor) for path, tensor in zip(self.paths, self.initial, strict=True) if path not in unread]
        dropped = self.dropped + tuple(path for path in unread if path not in self.dropped)
        if not kept:
            return State((), (), dropped=(*(path for path, _ in self.settled), *dropped), hooked=self.hooked)
        paths, initial = zip(*kept, strict=True)
        return State(paths, initial, self.settled, dropped, hooked=self.hooked, made=self.made)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names in contracts, such as `state.context` for the buffer `context`."""
        return tuple(f"{STATE}{snapshot.name(path)}" for path in self.paths)

    def now(self, module: torch.nn.Module) -> Tensors:
        """Return copies of the state in the model. Raises ExportError if a place does not exist."""
        try:
            return tuple(snapshot.take(module, path).detach().clone() for path in self.paths)
        except (KeyError, IndexError, AttributeError) as error:
            raise ExportError(f"the model's state is no longer in the same place: {error}", REMEDY) from error

    def widened(self, shapes: Sequence[Sequence[int]]) -> Tensors:
        """Return the initial state in these shapes, which may differ from its own shapes if it is uniform."""
        return tuple(
            _one_of(t, shape).expand(tuple(shape)).clone() for t, shape in zip(self.initial, shapes, strict=True)
        )


class StatefulModule(FlatModule):
    """The model as a function of the contract's tensors and the state that returns outputs and the next state."""

    def __init__(
        self, model: torch.nn.Module, example: FlatInputs, state: State, leave_out: Collection[str] = ()
    ) -> None:
        super().__init__(model, example, leave_out)
        self.state = state

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        """Return the model's outputs and next state for this state; the model itself is unchanged."""
        count = len(self.example.names)
        with holding(self.model, self.state, tensors[count:]):
            outputs = super().forward(*tensors[:count])
            following = tuple(snapshot.take(self.model, path).clone() for path in self.state.paths)
        return (*outputs, *following)


@contextlib.contextmanager
def holding(module: torch.nn.Module, state: State, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put this state into the model within the context; afterwards restore the previous objects."""
    plain = [(path, _moved(value, tensors)) for path, value in state.settled]
    given = [*zip(state.paths, (t.clone() for t in tensors), strict=True), *plain]
    kept = _Kept(module, [*(one.place for one in state.made), *(path for path, _ in given), *state.dropped])
    try:
        for path in state.dropped:
            with contextlib.suppress(*MISSING):
                value = snapshot.take(module, path)
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    snapshot.put(module, path, value.clone())
        for container in state.made:
            snapshot.put(module, container.place, container.fresh())
        for path, value in given:
            snapshot.put(module, path, value)
        yield
    finally:
        kept.put_back()


def _moved(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return a plain value, but replace a device by the state's: the search may have run on another device."""
    return tensors[0].device if isinstance(value, torch.device) and tensors else value


class _Kept:
    """The values at some paths of a module, including that a path does not exist."""

    def __init__(self, module: torch.nn.Module, paths: Sequence[Place]) -> None:
        self.module = module
        self.values: dict[Place, Any] = {}
        for path in paths:
            outer = _outermost(module, path)
            with contextlib.suppress(*MISSING):
                self.values[outer] = snapshot.take(module, outer)
            if outer not in self.values:
                self.values[outer] = self

    def put_back(self) -> None:
        """Restore each value; remove what did not exist."""
        for path, value in self.values.items():
            with contextlib.suppress(*MISSING):
                if value is self:
                    snapshot.remove(self.module, path)
                else:
                    snapshot.put(self.module, path, value)


def _outermost(module: torch.nn.Module, path: Place) -> Place:
    """Return the outermost place on a path that does not exist yet or is replaced as a whole; else the path itself.

    Replaced as a whole are a tuple, and a plain value such as None where a call puts an object.
    """
    for length in range(1, len(path)):
        try:
            value = snapshot.take(module, path[:length])
        except MISSING:
            return path[:length]
        if isinstance(value, (tuple, *snapshot.SCALARS)):
            return path[:length]
    return path


def save(state: State, path: Path) -> None:
    """Write the state for other processes of the same run, of its containers the places: each process makes its own."""
    places = tuple(Container(one.place) for one in state.made)
    torch.save((state.paths, state.initial, state.settled, state.dropped, (), state.hooked, places), path)


def load(path: Path) -> State:
    """Read a state that this run has written."""
    return State(*torch.load(path, weights_only=False))


def _one_of(initial: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Narrow dimensions of the initial value whose size differs in `shape` to 1."""
    for axis, size in enumerate(shape):
        initial = initial if size == initial.shape[axis] else initial.narrow(axis, 0, 1)
    return initial


def recorded(initial: torch.Tensor, shape: Sequence[Dim]) -> int | float | Values:
    """Return the initial value for a contract: a number if uniform, else the values with dynamic dimensions of size 1.

    Raises ExportError if it varies along a dynamic dimension or is too large.
    """
    whole, initial = initial, _one_of(initial, shape)
    if initial.numel() == 0:
        return 0
    if not snapshot.same(initial.expand(whole.shape), whole):
        raise ExportError(
            "the initial state varies along a dimension whose size follows the inputs'", "start from zeros"
        )
    first = initial.reshape(-1)[0]
    plain = not initial.is_complex() and bool((initial == first).all())  # False for NaN
    if plain and (not initial.is_floating_point() or abs(float(first)) <= LARGEST):
        value = first.item()
        return value if isinstance(value, float) else int(value)
    values = initial.detach().cpu().contiguous()
    if values.numel() * values.element_size() > LARGEST_INITIAL:
        size = f"{values.numel() * values.element_size():,} bytes of at most {LARGEST_INITIAL:,}"
        raise ExportError(f"the initial state is not uniform and too large for a contract: {size}", "start from zeros")
    raw = values.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Values(tuple(values.shape), base64.b64encode(raw).decode())


def initial(tensor: StateTensor) -> torch.Tensor:
    """Return a contract's initial value, which broadcasts to the state's shape. Raises ArtifactError if broken."""
    dtype = getattr(torch, tensor.dtype)
    if not isinstance(tensor.initial, Values):
        return torch.tensor(tensor.initial).to(dtype)
    try:
        raw = torch.frombuffer(bytearray(base64.b64decode(tensor.initial.data, validate=True)), dtype=dtype)
        return raw.reshape(tensor.initial.shape)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"the initial value of {STATE}{tensor.name} is broken: {error}", "export again") from error
