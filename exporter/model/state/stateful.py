"""What one call of a model leaves behind for the next, taken out of the model so that it can be carried.

A model that keeps state is turned into a function of its inputs and its state, which gives its outputs and the state
that comes next. Every target exports that; who carries the state is decided afterwards.
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
from exporter.model.state import snapshot
from exporter.model.state.snapshot import MISSING, Place
from exporter.model.tensors import Tensors

LARGEST_INITIAL = 16_000_000  # bytes of an initial value that is not uniform

REMEDY = (
    "keep it in a buffer of a fixed size and dtype from the start (register_buffer), or take and give it in forward"
)


@dataclass(frozen=True)
class State:
    """Where a model keeps its state, and what it is before the first call.

    `initial` has one tensor for each of `paths`, of the size 1 where the state follows the sizes of a call. `settled`
    are plain values as they are from the second call on; `dropped` are values that change and that nothing reads;
    `doubted` are those of `paths` that no call was seen to read, and that are not proven to be unread.
    """

    paths: tuple[Place, ...]
    initial: Tensors
    settled: tuple[tuple[Place, Any], ...] = ()
    dropped: tuple[Place, ...] = ()
    doubted: tuple[Place, ...] = ()

    @property
    def known(self) -> frozenset[Place]:
        """Every place that is known to change."""
        return frozenset((*self.paths, *(path for path, _ in self.settled), *self.dropped))

    def without(self, unread: Collection[Place]) -> State:
        """The same, where nothing reads these places."""
        kept = [(path, tensor) for path, tensor in zip(self.paths, self.initial, strict=True) if path not in unread]
        dropped = self.dropped + tuple(path for path in unread if path not in self.dropped)
        if not kept:
            return State((), (), dropped=(*(path for path, _ in self.settled), *dropped))
        paths, initial = zip(*kept, strict=True)
        return State(paths, initial, self.settled, dropped)

    @property
    def names(self) -> tuple[str, ...]:
        """`state.context` for the buffer `context`, and so on."""
        return tuple(f"{STATE}{snapshot.name(path)}" for path in self.paths)

    def now(self, module: torch.nn.Module) -> Tensors:
        """Copies of what the model holds. ExportError where one is not there."""
        try:
            return tuple(snapshot.take(module, path).detach().clone() for path in self.paths)
        except (KeyError, IndexError, AttributeError) as error:
            raise ExportError(f"the model's state is not where it was: {error}", REMEDY) from error

    def widened(self, shapes: Sequence[Sequence[int]]) -> Tensors:
        """The initial state in these shapes, which may differ from its own where it is uniform."""
        return tuple(
            _one_of(t, shape).expand(tuple(shape)).clone() for t, shape in zip(self.initial, shapes, strict=True)
        )


class StatefulModule(FlatModule):
    """The model as a function: the contract's tensors and the state in, outputs and the next state out."""

    def __init__(
        self, model: torch.nn.Module, example: FlatInputs, state: State, leave_out: Collection[str] = ()
    ) -> None:
        super().__init__(model, example, leave_out)
        self.state = state

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        """What the model gives, called with this state; the model itself is left as it was."""
        count = len(self.example.names)
        with holding(self.model, self.state, tensors[count:]):
            outputs = super().forward(*tensors[:count])
            following = tuple(snapshot.take(self.model, path).clone() for path in self.state.paths)
        return (*outputs, *following)


@contextlib.contextmanager
def holding(module: torch.nn.Module, state: State, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """The model with this state in it; afterwards with what it held before, in the very objects that it was."""
    plain = [(path, _moved(value, tensors)) for path, value in state.settled]
    given = [*zip(state.paths, (t.clone() for t in tensors), strict=True), *plain]
    kept = _Kept(module, [path for path, _ in given] + list(state.dropped))
    try:
        for path in state.dropped:
            with contextlib.suppress(*MISSING):
                value = snapshot.take(module, path)
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    snapshot.put(module, path, value.clone())
        for path, value in given:
            snapshot.put(module, path, value)
        yield
    finally:
        kept.put_back()


def _moved(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A plain value, or the device of the state where it is a device: the search may have been on another one."""
    return tensors[0].device if isinstance(value, torch.device) and tensors else value


class _Kept:
    """What stands at some paths of a module, or that nothing does."""

    def __init__(self, module: torch.nn.Module, paths: Sequence[Place]) -> None:
        self.module = module
        self.values: dict[Place, Any] = {}
        for path in paths:
            outer = _outermost_tuple(module, path)
            with contextlib.suppress(*MISSING):
                self.values[outer] = snapshot.take(module, outer)
            if outer not in self.values:
                self.values[outer] = self

    def put_back(self) -> None:
        """Each value where it was; what was not there is removed."""
        for path, value in self.values.items():
            with contextlib.suppress(*MISSING):
                if value is self:
                    snapshot.remove(self.module, path)
                else:
                    snapshot.put(self.module, path, value)


def _outermost_tuple(module: torch.nn.Module, path: Place) -> Place:
    """The path of the tuple that a place is in, which changes as a whole; or the place's own."""
    for length in range(1, len(path)):
        with contextlib.suppress(*MISSING):
            if isinstance(snapshot.take(module, path[:length]), tuple):
                return path[:length]
    return path


def save(state: State, path: Path) -> None:
    """Write it for other processes of the same run."""
    torch.save((state.paths, state.initial, state.settled, state.dropped), path)


def load(path: Path) -> State:
    """Read what this run has written."""
    return State(*torch.load(path, weights_only=False))


def _one_of(initial: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """The initial value without the dimensions that have another size in `shape`."""
    for axis, size in enumerate(shape):
        initial = initial if size == initial.shape[axis] else initial.narrow(axis, 0, 1)
    return initial


def recorded(initial: torch.Tensor, shape: Sequence[Dim]) -> int | float | Values:
    """The initial value as a contract has it: a number where it is uniform, else without the dimensions that move."""
    whole, initial = initial, _one_of(initial, shape)
    if initial.numel() == 0:
        return 0
    if not snapshot.same(initial.expand(whole.shape), whole):
        raise ExportError("the initial state is not uniform where its size follows the inputs'", "start from zeros")
    first = initial.reshape(-1)[0]
    plain = not initial.is_complex() and bool((initial == first).all())  # NaN is not
    if plain and (not initial.is_floating_point() or abs(float(first)) <= LARGEST):
        value = first.item()
        return value if isinstance(value, float) else int(value)
    values = initial.detach().cpu().contiguous()
    if values.numel() * values.element_size() > LARGEST_INITIAL:
        raise ExportError(f"the initial state has {values.numel()} values that differ", "start from zeros")
    raw = values.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Values(tuple(values.shape), base64.b64encode(raw).decode())


def initial(tensor: StateTensor) -> torch.Tensor:
    """The initial value in a contract, to be broadcast to the state's shape. ArtifactError for what is none."""
    dtype = getattr(torch, tensor.dtype)
    if not isinstance(tensor.initial, Values):
        return torch.tensor(tensor.initial).to(dtype)
    try:
        raw = torch.frombuffer(bytearray(base64.b64decode(tensor.initial.data, validate=True)), dtype=dtype)
        return raw.reshape(tensor.initial.shape)
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"the initial value of {STATE}{tensor.name} is broken: {error}", "export again") from error
