"""What a loaded model keeps from call to call: found at its example, and wherever else calls are made of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from exporter.core.contract_records import Contract
from exporter.core.errors import ExportError
from exporter.core.probing import describe
from exporter.core.size_range import Sizes
from exporter.evidence import eager
from exporter.model.flattening import FlatModule
from exporter.model.state import carrying, independence, search, snapshot
from exporter.model.state.search import CALLS, Call, alike
from exporter.model.state.snapshot import Place, Snapshot
from exporter.model.state.stateful import REMEDY, State
from exporter.model.tensors import Tensors
from exporter.model.torchscript import interpreter
from exporter.workers.loading import LoadedModel, find_contract, interpret
from exporter.workers.messages import Job

REPEATED = 4  # equal calls in a row


def find(job: Job, loaded: LoadedModel) -> Contract:
    """What the model carries from call to call, of which its module becomes a function; and its contract then.

    ExportError as `find_state` and `find_contract`.
    """
    device = job.options.device
    find_state(loaded, device)
    found = find_contract(job, loaded)
    while _follow_elsewhere(loaded, device):
        found = find_contract(job, loaded)
    _require_unread(loaded, device)
    return found


def find_state(loaded: LoadedModel, device: str) -> None:
    """Find out what the model carries from call to call, and make its module a function of it.

    ExportError, with names and lines, where it cannot be taken out of the model; and for a model that does not give the
    same again where nothing is seen to change.
    """
    kinds = [_given(loaded, loaded.base)]
    step = _steps(loaded, _plain(loaded), kinds, device)
    _follow_programs(loaded, step)
    found = _search(loaded, kinds, device)
    _require_repeatable(loaded, step, found)
    if found is None:
        return
    loaded.carry(found)
    if found.doubted:
        example = loaded.inputs(loaded.base, 0) + found.initial
        unread = independence.unread(loaded.module, tuple(t.to(device) for t in example), found)
        loaded.held.restore()
        loaded.carry(found.without(unread))
    _warn(loaded)


def _follow_elsewhere(loaded: LoadedModel, device: str) -> bool:
    """Take in what changed at other sizes than the example's; whether there was anything."""
    found, loaded.elsewhere = loaded.elsewhere, {}
    for sizes in [dict(pairs) for pairs in dict.fromkeys(tuple(sizes.items()) for sizes in found.values())]:
        strange = [path for path, where in found.items() if where == sizes and path not in loaded.kept.known]
        if strange:
            _take_in(loaded, device, strange, _given(loaded, sizes), describe(sizes))
    if found:
        _warn(loaded)
    return bool(found)


def require_known(loaded: LoadedModel, device: str, calls: Iterable[tuple[str, Tensors]]) -> None:
    """ExportError where one of these calls changes what shows in a later one and is not known to be state."""
    for name, data in calls:
        loaded.held.restore()
        eager.run(_plain(loaded), data, device)
        strange = loaded.strange()
        loaded.held.restore()
        if strange and (joined := _take_in(loaded, device, strange, [data] * CALLS, name)):
            raise _only_there(loaded, joined, name)


def _take_in(loaded: LoadedModel, device: str, strange: list[Place], given: list[Tensors], name: str) -> list[Place]:
    """Search by calls of the example and of these inputs in turn; returns what joined the state.

    By the latter alone where the state's size is another then, for no sequence of calls has both.
    """
    alone = _has_another_size(loaded, device, given[0])
    kinds = [given] if alone else [_given(loaded, loaded.base), given]
    found = _search(loaded, kinds, device) or State((), ())
    kept, joined = loaded.kept, [path for path in strange if path in found.known and path not in found.dropped]
    if joined and (alone or not set(kept.paths) <= set(found.paths)):
        raise _only_there(loaded, joined, name)
    now = found if joined else kept
    dropped = dict.fromkeys((*now.dropped, *kept.dropped, *strange))
    read = now.known - frozenset(now.dropped)
    loaded.carry(replace(now, dropped=tuple(path for path in dropped if path not in read)))
    return joined


def _require_unread(loaded: LoadedModel, device: str) -> None:
    """ExportError where what calls at all sizes tried leave, and none was seen to read, is read at one of them."""
    flat = _plain(loaded)

    def run(sizes: Sizes, left: Mapping[Place, Any]) -> Tensors:
        loaded.held.restore()
        for path, value in left.items():
            with contextlib.suppress(*snapshot.MISSING):
                snapshot.put(loaded.module.model, path, value.clone() if isinstance(value, torch.Tensor) else value)
        torch.manual_seed(0)
        with eager.naming(describe(sizes)):
            return eager.run(flat, loaded.inputs(sizes, 0), device)

    if not loaded.kept.dropped:
        return
    left: dict[Place, Any] = {}
    for sizes in loaded.tried:
        run(sizes, {})
        left |= {path: value for path, value in loaded.held.changes().items() if path in loaded.kept.dropped}
    for sizes in loaded.tried:
        alone = run(sizes, {})
        if not alike(run(sizes, left), alone):
            read = [path for path in left if not alike(run(sizes, {path: left[path]}), alone)]
            raise ExportError(
                f"the model reads {search.named(loaded.module.model, read or list(left))} at {describe(sizes)}, and "
                f"not at its example, {describe(loaded.base)}",
                "let each call read it, or promise only sizes at which none does: --size NAME=MIN..MAX",
            )
    loaded.held.restore()


def _only_there(loaded: LoadedModel, paths: Sequence[Place], name: str) -> ExportError:
    return ExportError(
        f"the model changes {search.named(loaded.module.model, paths)} at {name}, and not at its example, "
        f"{describe(loaded.base) or 'of other values'}; a later call reads that",
        "let each call change it, or promise only what does not: `sizes` of the recipe, or --size NAME=MIN..MAX",
    )


def _has_another_size(loaded: LoadedModel, device: str, data: Tensors) -> bool:
    """Whether a call of these inputs leaves the known state in another size than the example does."""
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
    """The state that calls with inputs of these kinds show; of a model on a GPU, in a copy on the CPU.

    The search gives calls values that they were not made for. An index out of range raises on the CPU; on a GPU it ends
    every later call of the process.
    """
    own = loaded.module.model, loaded.held, _steps(loaded, _plain(loaded), kinds, device)
    if device == "cpu":
        return search.find(*own, len(kinds))
    if not search.changes_anything(*own, len(kinds)):
        return None
    found = search.find(*(_copy_on_cpu(loaded, kinds) or own), len(kinds))
    return found and replace(found, initial=tuple(t.to(device) for t in found.initial))


def _copy_on_cpu(loaded: LoadedModel, kinds: Sequence[list[Tensors]]) -> tuple[torch.nn.Module, Snapshot, Call] | None:
    """A copy of the model, and calls of it; None where the model runs on its own device alone."""
    try:
        model = snapshot.copied(loaded.module.model, "cpu")
        held = Snapshot(model)
        flat = FlatModule(model, loaded.module.example, loaded.module.leave_out).eval()
        step = _steps(loaded, flat, kinds, "cpu")
        step(0)
    except Exception:  # whatever a model raises that was made for a GPU
        return None
    return model, held, step


def _steps(loaded: LoadedModel, flat: FlatModule, kinds: Sequence[list[Tensors]], device: str) -> Call:
    """Calls of a model as it is, loaded's own or a copy, with inputs of each kind in turn."""

    def step(number: int) -> Tensors:
        torch.manual_seed(number)  # what is drawn is no state
        with eager.naming(describe(loaded.base)):
            return eager.run(flat, kinds[number % len(kinds)][number], device)

    return step


def _plain(loaded: LoadedModel) -> FlatModule:
    """The model as it is, the state inside."""
    return FlatModule(loaded.module.model, loaded.module.example, loaded.module.leave_out).eval()


def _warn(loaded: LoadedModel) -> None:
    if loaded.kept.dropped:
        loaded.warnings.append(search.unread(loaded.module.model, loaded.kept))


def _require_repeatable(loaded: LoadedModel, step: Call, found: State | None) -> None:
    """ExportError for a model that gives other outputs to the same call, though all that was found is as it was."""
    outputs = []
    for _ in range(REPEATED):
        if found is not None and found.paths:
            loaded.held.restore()
        outputs.append(step(0))
    loaded.held.restore()
    if not all(len(outputs[0]) == len(o) and all(map(carrying.agree, outputs[0], o)) for o in outputs):
        raise ExportError(
            "the model gives other outputs to an equal call, though nothing found in it differs: perhaps it keeps "
            "state in a global, a closure, an iterator or an array of NumPy, or draws random numbers by other means "
            "than torch's own",
            REMEDY,
        )


def _follow_programs(loaded: LoadedModel, step: Call) -> None:
    """Where the model is, or holds, TorchScript with a state of its own: run it node by node, so that it can be taken
    out. ExportError where that gives something else than TorchScript does.
    """
    if not any(isinstance(m, interpreter.Interpreter) and m.runs_program for m in loaded.module.model.modules()):
        return
    wanted = list(map(step, range(CALLS)))
    interpret(loaded.module.model)
    loaded.held = Snapshot(loaded.module.model)  # of what the program's own state was when it was loaded
    if not all(map(alike, map(step, range(CALLS)), wanted)):
        raise ExportError(
            "the state of the TorchScript program cannot be followed: run node by node it gives other outputs",
            "export the module that it was made from",
        )
    loaded.held.restore()
