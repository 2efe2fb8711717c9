"""Find the state that a loaded model keeps between calls, at its example and in every other call made of it.

This file is long because each kind of call needs its own search, which share the same steps.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from exporter.core import memory, time_limit
from exporter.core.contract_records import Contract
from exporter.core.errors import ExporterError, ExportError
from exporter.core.probing import describe
from exporter.core.size_range import Sizes
from exporter.evidence import eager, perturbations
from exporter.model import differentiation
from exporter.model.flattening import FlatModule
from exporter.model.state import carrying, independence, search, snapshot
from exporter.model.state.search import CALLS, Call, alike
from exporter.model.state.snapshot import Place, Snapshot
from exporter.model.state.stateful import REMEDY, State
from exporter.model.tensors import Tensors
from exporter.model.torchscript import interpreter
from exporter.workers.loading import LoadedModel, find_contract, interpret
from exporter.workers.messages import Job

REPEATED = 4  # number of equal calls in a row
DRAWN = 200  # number of them if the model draws random numbers without torch
DRAWN_S = 5.0  # seconds that they may take


def find(job: Job, loaded: LoadedModel) -> Contract:
    """Find the model's state, make its module a function of it, and return the contract of the result.

    Raises ExportError like `find_state` and `find_contract`, or if dropped state turns out to be read.
    """
    device = job.options.device
    find_state(loaded, device)
    found = find_contract(job, loaded)
    while _follow_elsewhere(loaded, device):
        found = find_contract(job, loaded)
    _require_unread(loaded, device)
    return found


def find_state(loaded: LoadedModel, device: str) -> None:
    """Find the state that the model carries between calls, and make its module a function of it.

    Raises ExportError, with names and lines, if the state cannot be taken out of the model, or if equal calls return
    different outputs although no state was seen to change.
    """
    known = differentiation.needed(loaded.module.model)
    try:
        _find_state(loaded, device)
    except ExportError:
        if differentiation.needed(loaded.module.model) is known:
            raise
        loaded.held.restore()  # a call failed and was repeated for gradients, which looked like state
        find_state(loaded, device)


def _find_state(loaded: LoadedModel, device: str) -> None:
    kinds = [_given(loaded, loaded.base)]
    step = _steps(loaded, _plain(loaded), kinds, device)
    _follow_programs(loaded, step)
    found = _search_hooked(loaded, kinds, step, device)
    _require_repeatable(loaded, step, found)
    if found is None:
        return
    loaded.carry(found, device)
    if found.doubted:
        example = loaded.inputs(loaded.base, 0) + found.initial
        unread = independence.unread(loaded.module, tuple(t.to(device) for t in example), found)
        loaded.held.restore()
        loaded.carry(found.without(unread), device)
    _warn(loaded)


def _search_hooked(loaded: LoadedModel, kinds: Sequence[list[Tensors]], step: Call, device: str) -> State | None:
    """Return the state. If the first call registers hooks, keep them, unless a call then fails or returns another."""
    found, refused = None, None
    try:
        found = _search(loaded, kinds, device)
    except ExportError as error:
        refused = error
    if loaded.held.hooked:
        before, wanted = loaded.held, step(0)
        try:
            loaded.set_up(device)
            same = alike(step(0), wanted)
        except Exception:  # what the first call sets up may need more than its hooks and flags
            same = False
        if same:
            loaded.held.restore()
            return replace(_search(loaded, kinds, device) or State((), ()), hooked=True)
        before.restore()
        loaded.held = before
    if refused is not None:
        raise refused
    return found


def _follow_elsewhere(loaded: LoadedModel, device: str) -> bool:
    """Add what changed at sizes other than the example's to the state. Return whether anything changed there."""
    found, loaded.elsewhere = loaded.elsewhere, {}
    for sizes in [dict(pairs) for pairs in dict.fromkeys(tuple(sizes.items()) for sizes in found.values())]:
        unknown = [path for path, where in found.items() if where == sizes and path not in loaded.kept.known]
        if unknown:
            _take_in(loaded, device, unknown, _given(loaded, sizes), describe(sizes))
    if found:
        _warn(loaded)
    return bool(found)


def require_known(loaded: LoadedModel, device: str, calls: Iterable[tuple[str, Tensors]]) -> None:
    """Raise ExportError if one of these calls changes a value that a later call reads and that is not known state.

    Calls in which the model raises an exception count for nothing, as in the golden.
    """
    for name, data in calls:
        loaded.held.restore()
        try:
            eager.run(_plain(loaded), data, device)
        except Exception:  # at unusual values, a model can raise anything
            continue
        finally:
            unknown = loaded.strange()
            loaded.held.restore()
        if unknown and (joined := _take_in(loaded, device, unknown, [data] * CALLS, name)):
            raise _only_there(loaded, joined, name)


def _take_in(loaded: LoadedModel, device: str, unknown: list[Place], given: list[Tensors], name: str) -> list[Place]:
    """Search for state with calls of the example and of these inputs in turn. Return the places that joined the state.

    If these inputs leave the state in another size, the search uses them alone: no sequence of calls can mix both.
    """
    alone = _has_another_size(loaded, device, given[0])
    kinds = [given] if alone else [_given(loaded, loaded.base), given]
    found = _search(loaded, kinds, device) or State((), ())
    kept, joined = loaded.kept, [path for path in unknown if path in found.known and path not in found.dropped]
    if joined and (alone or not set(kept.paths) <= set(found.paths)):
        raise _only_there(loaded, joined, name)
    now = found if joined else kept
    dropped = dict.fromkeys((*now.dropped, *kept.dropped, *unknown))
    read = now.known - frozenset(now.dropped)
    unread = tuple(path for path in dropped if path not in read)
    loaded.carry(replace(now, dropped=unread, hooked=kept.hooked), device)
    return joined


def _require_unread(loaded: LoadedModel, device: str) -> None:
    """Raise ExportError if a call reads dropped state, which no call of the search was seen to read.

    Each size tried, and the example with each change of its values, is run from what calls at these sizes left.
    """
    if not loaded.kept.dropped:
        return
    trial = _Dropped(loaded, _plain(loaded), device)
    left: dict[Place, Any] = {}
    for sizes in loaded.tried:
        with eager.naming(describe(sizes)):
            trial.run(loaded.inputs(sizes, 0))
        left |= trial.left()
    for sizes in loaded.tried:
        data = loaded.inputs(sizes, 0)
        limit_s = time_limit.of(functools.partial(trial.run, data))
        trial.require_unread(describe(sizes), data, trial.run(data), left, limit_s)
    example = loaded.inputs(loaded.base, 0)
    limit_s = time_limit.of(lambda: trial.run(example))
    loaded.held.restore()
    for change, data in eager.safe_on_gpu(trial.flat, example, perturbations.changed(example), device).items():
        try:
            with time_limit.stop_after(limit_s):
                alone = trial.run(data)
        except (Exception, time_limit.OutOfTime):  # at unusual values, a model can raise anything, or not return
            continue
        trial.require_unread(f"{describe(loaded.base)} {change}", data, alone, left, limit_s)
    loaded.held.restore()


@dataclass(frozen=True)
class _Dropped:
    """Calls of a model from its initial state, except for dropped state that another call left."""

    loaded: LoadedModel
    flat: FlatModule
    device: str

    def run(self, data: Tensors, left: Mapping[Place, Any] | None = None) -> Tensors:
        self.loaded.held.restore()
        for path, value in (left or {}).items():
            with contextlib.suppress(*snapshot.MISSING):
                snapshot.put(self.flat.model, path, value.clone() if isinstance(value, torch.Tensor) else value)
        torch.manual_seed(0)
        return eager.run(self.flat, data, self.device)

    def left(self) -> dict[Place, Any]:
        """Return what the last call left in dropped state."""
        return {p: value for p, value in self.loaded.held.changes().items() if p in self.loaded.kept.dropped}

    def require_unread(
        self, name: str, data: Tensors, alone: Tensors, left: Mapping[Place, Any], limit_s: float
    ) -> None:
        """Raise ExportError if this call returns something else than `alone` from what another call left.

        So does a call that fails then, or takes longer than `limit_s`. A lack of memory says nothing about the model.
        """

        def reads(some: Mapping[Place, Any]) -> bool:
            try:
                with time_limit.stop_after(limit_s):
                    found = self.run(data, some)
            except (Exception, time_limit.OutOfTime) as error:  # a model may not expect this value
                if isinstance(error, ExporterError) or memory.ran_out(error):
                    raise
                return True
            return not alike(found, alone)

        if reads(left):
            read = [path for path in left if reads({path: left[path]})]
            raise ExportError(
                f"the model reads {search.named(self.flat.model, read or list(left))} at {name}, but not at its "
                f"example, {describe(self.loaded.base)}",
                "keep it in a buffer that each call reads and writes, or promise only sizes at which no call reads it: "
                "--size NAME=MIN..MAX",
            )


def _only_there(loaded: LoadedModel, paths: Sequence[Place], name: str) -> ExportError:
    return ExportError(
        f"the model changes {search.named(loaded.module.model, paths)} at {name}, but not at its example, "
        f"{describe(loaded.base) or 'which has other values'}; a later call reads the change",
        "change it in every call, or promise only sizes and values that do not change it: `sizes` of the recipe, or "
        "--size NAME=MIN..MAX",
    )


def _has_another_size(loaded: LoadedModel, device: str, data: Tensors) -> bool:
    """Return whether a call with these inputs leaves the known state in shapes that differ from its initial ones."""
    if loaded.state is None:
        return False
    loaded.held.restore()
    eager.run(_plain(loaded), data, device)
    left = loaded.state.now(loaded.module.model)
    loaded.held.restore()
    return any(one.shape != initial.shape for one, initial in zip(left, loaded.state.initial, strict=True))


def _given(loaded: LoadedModel, sizes: Sizes) -> list[Tensors]:
    return [loaded.inputs(sizes, seed) for seed in range(CALLS)]


def _search(loaded: LoadedModel, kinds: Sequence[list[Tensors]], device: str) -> State | None:
    """Return the state that calls with inputs of these kinds show. A model on a GPU is searched in a copy on the CPU.

    The search passes values that a call may not expect. An index out of range raises an error on the CPU; on a GPU it
    makes every later call of the process fail.
    """
    own = loaded.module.model, loaded.held, _steps(loaded, _plain(loaded), kinds, device)
    if device == "cpu":
        return search.find(*own, len(kinds))
    if not search.changes_anything(*own, len(kinds)):
        return None
    found = search.find(*(_copy_on_cpu(loaded, kinds) or own), len(kinds))
    return found and replace(found, initial=tuple(t.to(device) for t in found.initial))


def _copy_on_cpu(loaded: LoadedModel, kinds: Sequence[list[Tensors]]) -> tuple[torch.nn.Module, Snapshot, Call] | None:
    """Return a copy of the model on the CPU, its snapshot and its calls, or None if it does not run there."""
    try:
        model = snapshot.copied(loaded.module.model, "cpu")
        held = Snapshot(model)
        flat = FlatModule(model, loaded.module.example, loaded.module.leave_out).eval()
        step = _steps(loaded, flat, kinds, "cpu")
        step(0)
    except Exception:  # a model made for a GPU may raise anything
        return None
    return model, held, step


def _steps(loaded: LoadedModel, flat: FlatModule, kinds: Sequence[list[Tensors]], device: str) -> Call:
    """Return a function that calls `flat`, the loaded model or a copy of it, with inputs of each kind in turn."""

    def step(number: int) -> Tensors:
        torch.manual_seed(number)  # random numbers are not state
        with eager.naming(describe(loaded.base)):
            return eager.run(flat, kinds[number % len(kinds)][number], device)

    return step


def _plain(loaded: LoadedModel) -> FlatModule:
    """Return the flattened model with its state still inside."""
    return FlatModule(loaded.module.model, loaded.module.example, loaded.module.leave_out).eval()


def _warn(loaded: LoadedModel) -> None:
    if loaded.kept.dropped:
        loaded.warnings.append(search.unread(loaded.module.model, loaded.kept))


def _require_repeatable(loaded: LoadedModel, step: Call, found: State | None) -> None:
    """Raise ExportError if equal calls return different outputs although the state that was found is restored.

    A model that draws random numbers without torch is called more often, because a draw may matter rarely.
    """

    def call() -> Tensors:
        if found is not None and found.paths:
            loaded.held.restore()
        return step(0)

    before, started = _generators(), time.perf_counter()
    first, calls = call(), 1
    drawn = _generators() != before
    while calls < REPEATED or (drawn and calls < DRAWN and time.perf_counter() - started < DRAWN_S):
        again = call()
        calls += 1
        if len(first) != len(again) or not all(map(carrying.agree, first, again)):
            loaded.held.restore()
            raise ExportError(
                "the model returns different outputs for equal calls, but no changed state was found in it: perhaps it "
                "keeps state in a global, a closure, an iterator or a NumPy array, or draws random numbers without "
                "torch",
                REMEDY,
            )
    loaded.held.restore()
    if drawn:
        loaded.warnings.append(
            f"the model draws random numbers from Python or NumPy; {calls} calls returned the same, and artifacts keep "
            "what one call drew"
        )


def _generators() -> tuple[object, ...]:
    """Return the state of the random number generators of Python and NumPy."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def _follow_programs(loaded: LoadedModel, step: Call) -> None:
    """Run TorchScript programs in the model that have state node by node, so that the state can be taken out.

    Raises ExportError if the outputs then differ from those of TorchScript.
    """
    if not any(isinstance(m, interpreter.Interpreter) and m.runs_program for m in loaded.module.model.modules()):
        return
    wanted = list(map(step, range(CALLS)))
    interpret(loaded.module.model)
    loaded.held = Snapshot(loaded.module.model)  # includes the programs' state as loaded
    if not all(map(alike, map(step, range(CALLS)), wanted)):
        raise ExportError(
            "the state of the TorchScript program cannot be followed: its outputs differ when it runs node by node",
            "export the module that it was made from",
        )
    loaded.held.restore()
