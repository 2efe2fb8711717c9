"""Finding the state of a model by calling it: what successive calls leave, and what later calls read of that.

This file is long because every function is a step of one search over the same recorded calls.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from exporter.core import time_limit
from exporter.core.errors import ExportError
from exporter.model.state import contrary, first_call, flow, snapshot
from exporter.model.state.first_call import Container
from exporter.model.state.snapshot import MISSING, Place, Snapshot
from exporter.model.state.stateful import REMEDY, State, holding
from exporter.model.tensors import Tensors

CALLS = 8  # number of successive calls in a search
NOISE = 1e-6  # relative to the largest value: allowed difference between equal calls
TRIED = (1, 3, CALLS - 1)  # calls before which a value is reset, to see whether they read it
NEAR, LARGE, CONTRARY = range(3)  # changes of a value
LONG = 64  # length of a list that grows
MAX_NORM = "renormalize its rows once in load(), and set the layer's max_norm to None"
_FIRST_CALL_DIFFERS = "behaves differently in its first call, because of"
_HOLD_A_BUFFER = (
    "register it as a buffer with the value that the first call begins with; if the first call computes something else "
    "than later ones, count the calls in another buffer and choose with torch.where(calls == 0, FIRST, LATER)"
)


def unread(module: torch.nn.Module, state: State) -> str:
    """Return the warning for values that change but that no later call reads."""
    return f"a call writes to {named(module, state.dropped)}; no later call depends on that, so it is not state"


def named(module: torch.nn.Module, paths: Sequence[Place]) -> str:
    """Return the names of the first places, each with the line that assigns to it."""
    first = [f"{snapshot.name(path)}{_line(module, path)}" for path in paths[:3]]
    return ", ".join(first) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


Call = Callable[[int], Tensors]  # returns the outputs for the inputs of this number


def find(module: torch.nn.Module, held: Snapshot, step: Call, kinds: int = 1) -> State | None:
    """Return the state of a model, or None if it keeps none.

    `step(i)` calls the model with the i-th inputs of a sequence of CALLS, which cycle through `kinds` kinds (such as
    different sizes). Raises ExportError, with the names and lines, for state that cannot be extracted: the model might
    export, but the result would be wrong.
    """
    search = _Search(module, held, step, kinds)
    try:
        return search.state()
    finally:
        held.restore()


def changes_anything(module: torch.nn.Module, held: Snapshot, step: Call, kinds: int = 1) -> bool:
    """Return whether calls change or write to anything that the model holds; if not, `find` returns None."""
    try:
        return _Search(module, held, step, kinds)._shows_any()
    finally:
        held.restore()


class _Search:
    """A search in progress: the outputs and changes of successive calls, and of the same calls from the start."""

    def __init__(self, module: torch.nn.Module, held: Snapshot, step: Call, kinds: int) -> None:
        self.module, self.held, self.step, self.kinds = module, held, step, kinds
        self.outputs: list[Tensors] = []
        self.left: list[dict[Place, Any]] = []
        self.written: set[Place] = set()  # places that every call of some kind writes to
        self.limit_s = time_limit.LEAST_S  # of calls with values that a model may not expect
        self.reached: flow.Reached = {}  # what ends up different if a place changes
        self.fixed: set[Place] = set()  # written places that keep their values in every call
        self.unseen: set[Place] = set()  # what outputs are computed from, although no change of it changed one

    def state(self) -> State | None:
        if not self._shows_any():
            return None
        changed = list(dict.fromkeys(path for left in self.left for path in left))
        rewritten = self._rewritten()
        self.fixed = self._fixed(changed)
        live = self._live(changed)
        changed = list(dict.fromkeys((*changed, *live, *rewritten, *self.fixed)))
        order = {path: index for index, (path, _) in enumerate(snapshot.leaves(self.module))}
        changed.sort(key=lambda path: order.get(path, len(order)))
        if not changed:
            return None
        parameters = [path for path in changed if isinstance(self.held.initial.get(path), torch.nn.Parameter)]
        if parameters:
            if self._has_norms(parameters):
                raise self._refused(parameters, "renormalizes (max_norm) in each call its parameter", MAX_NORM)
            raise self._refused(parameters, "changes its parameter", "make it a buffer (register_buffer)")
        fresh = [self._afresh(number) for number in range(CALLS)]
        depends = not all(map(alike, fresh, self.outputs))
        always = [path for path in changed if self._is_kept(path) and self._always_changes(path)]
        if not depends and not always and not live:
            return State((), (), dropped=tuple(changed))
        seen = [p for p in changed if (p in live and p not in self.unseen) or (depends and self._is_read(p))]
        read = [path for path in changed if path in always or path in live or path in seen]
        if not read:
            raise self._refused(changed, "returns different outputs in a second call, and it changes", REMEDY)
        found = self._taken_out(read, [path for path in changed if path not in read])
        return replace(found, doubted=tuple(path for path in read if path not in seen))

    def _has_norms(self, parameters: Iterable[Place]) -> bool:
        """Return whether the parameters belong to layers that limit the norms of their rows, as Embedding can."""
        limited = [one for one in self.module.modules() if getattr(one, "max_norm", None) is not None]
        theirs = {id(own) for one in limited for own in one.parameters(recurse=False)}
        return all(id(self.held.initial[path]) in theirs for path in parameters)

    def _shows_any(self) -> bool:
        """Call the model repeatedly; return whether any call changes or writes anything.

        Stops after two calls of each kind if none did.
        """
        self.held.restore()
        started = time.perf_counter()
        writing: list[list[set[Place]]] = [[] for _ in range(self.kinds)]
        for number in range(CALLS):
            before = snapshot.tensors(self.module)
            self.outputs.append(self.step(number))
            self.left.append(self.held.changes())
            writing[number % self.kinds].append(snapshot.written(self.module, before))
            self.written = set().union(*(set.intersection(*of_kind) for of_kind in writing if of_kind))
            if number == 2 * self.kinds - 1 and not any(self.left) and not self.written:
                return False
        self.limit_s = time_limit.LEAST_S + time_limit.TIMES * (time.perf_counter() - started) / CALLS
        return True

    def _taken_out(self, read: list[Place], dropped: list[Place]) -> State:
        tensors = [path for path in read if self._is_tensor(path)]
        plain = [path for path in read if path not in tensors]
        moving = [path for path in plain if not self._settles(path)]
        if moving and all(map(alike, map(self._afresh, range(CALLS)), self.outputs)):
            raise self._refused(
                moving, "perhaps returns different outputs after more calls, because it counts in", REMEDY
            )
        if moving:
            values = ", ".join(repr(left.get(moving[0], self._first(moving[0]))) for left in self.left[:3])
            raise self._refused(moving, f"keeps state that is not a tensor ({values}, …), in", REMEDY)
        if not tensors:
            raise self._refused(read, _FIRST_CALL_DIFFERS, _HOLD_A_BUFFER)
        self._require_fixed_form(tensors)
        made = self._made(tensors)
        whole = [path for path in dropped if first_call.into(made, path) and self._is_tensor(path)]
        self._require_fixed_form(whole)
        settled = tuple((path, self.left[-1].get(path, self._first(path))) for path in plain)
        unread = tuple(path for path in dropped if path not in whole)
        return self._with_initial(State((*tensors, *whole), (), settled, unread, made=made))

    def _is_tensor(self, path: Place) -> bool:
        return any(isinstance(left.get(path), torch.Tensor) for left in self._settled_left(path))

    def _require_fixed_form(self, tensors: Sequence[Place]) -> None:
        """Raise ExportError unless each call leaves a dense tensor of the same shape at each of these places."""
        for path in tensors:
            held = [left[path] for left in self._settled_left(path) if isinstance(left.get(path), torch.Tensor)]
            if len(held) < CALLS:
                raise self._refused([path], "keeps state that does not exist after every call, in", REMEDY)
            if any(value.layout is not torch.strided for value in held):
                remedy = "keep its values in a dense buffer, and the indices in another"
                raise self._refused([path], "keeps state in a sparse tensor,", remedy)
            shapes = [list(value.shape) for value in held]
            if any(shape != shapes[0] for shape in shapes):
                sizes = ", ".join(map(str, shapes[:3]))
                raise self._refused(
                    [path], f"keeps state whose size changes from call to call ({sizes}, …), in", REMEDY
                )

    def _made(self, tensors: Sequence[Place]) -> tuple[Container, ...]:
        """Return the containers of these tensors that the first call makes. Raises ExportError if one has no copy."""
        try:
            return first_call.containers(self.module, self.held, lambda: self.step(0), tensors)
        except Exception as error:  # an object may raise anything when it is copied
            what = f"makes an object in its first call that cannot be copied ({type(error).__name__}), for"
            raise self._refused(tensors, what, REMEDY) from error

    def _settled_left(self, path: Place) -> list[dict[Place, Any]]:
        """Return what calls left, with the initial value for calls that left it unchanged."""
        initial = self._first(path)
        known = {path: initial} if isinstance(initial, torch.Tensor) else {}
        return [known | left for left in self.left]

    def _with_initial(self, state: State) -> State:
        """Return the state with an initial value equivalent to the model's own, which may have another form."""
        paths = state.paths
        after = [self._settled_left(path)[0][path] for path in paths]
        own = [self._own(path, later) for path, later in zip(paths, after, strict=True)]
        guessed = [path for path, first in zip(paths, own, strict=True) if first is None]
        if hidden := [path for path in guessed if path in self.unseen]:
            # No call would show that another value is wrong.
            raise self._refused(hidden, _FIRST_CALL_DIFFERS, _HOLD_A_BUFFER)
        zeros = tuple(map(torch.zeros_like, after))
        given = tuple(zero if first is None else first for first, zero in zip(own, zeros, strict=True))
        for initial in (given, zeros):
            if self._is_same(one := replace(state, initial=initial), after):
                return one
        for path in paths:
            if other := self.held.shared.get(path):
                remedy = "keep it in one module that the others use, or clone it where it may differ"
                raise self._refused([path], f"keeps state that shares its memory with {other}, in", remedy)
        raise self._refused(self._to_blame(state, after, guessed), _FIRST_CALL_DIFFERS, _HOLD_A_BUFFER)

    def _to_blame(self, state: State, after: list[torch.Tensor], guessed: list[Place]) -> Sequence[Place]:
        """Return the places whose later form alone makes the first call differ; those that were guessed if none does.

        Places in the same container are judged together.
        """
        groups: dict[Place, list[Place]] = {}
        for path in (*guessed, *(path for path, _ in state.settled)):
            container = first_call.into(state.made, path)
            groups.setdefault(container.place if container else path, []).append(path)
        blamed = [path for group in groups.values() if not self._begins(state, after, group) for path in group]
        return blamed or guessed or state.paths

    def _begins(self, state: State, after: list[torch.Tensor], group: Sequence[Place]) -> bool:
        """Return whether the first call does the same if only the places of this group have their later form."""
        tensors = dict(zip(state.paths, after, strict=True))
        given = {path: torch.zeros_like(tensors[path]) for path in group if path in tensors}
        settled = tuple((path, value) for path, value in state.settled if path in group)
        made = tuple(one for one in state.made if any(map(one.holds, group)))
        self.held.restore()
        try:
            with holding(self.module, State(tuple(given), (), settled, made=made), tuple(given.values())):
                outputs = self.step(0)
                left = state.now(self.module)
        except Exception:  # a model may raise anything for an unexpected state
            return False
        return alike(outputs, self.outputs[0]) and alike(left, tuple(after))

    def _own(self, path: Place, later: torch.Tensor) -> torch.Tensor | None:
        """Return the model's own initial value in the form of later ones, or None if it does not fit."""
        first = self.held.value(path) if path in self.held.initial else None
        if not isinstance(first, torch.Tensor) or first.dtype != later.dtype or first.dim() != later.dim():
            return None
        fits = all(a in (1, b) for a, b in zip(first.shape, later.shape, strict=True))
        return first.expand(later.shape).clone() if fits else None

    def _is_same(self, state: State, after: list[torch.Tensor]) -> bool:
        """Return whether the whole sequence from this initial state reproduces the model's outputs."""
        self.held.restore()
        tensors = state.initial
        for number in range(CALLS):
            try:
                with holding(self.module, state, tensors):
                    outputs = self.step(number)
                    tensors = state.now(self.module)
            except Exception:  # a model may raise anything for an unexpected state
                return False
            if not alike(outputs, self.outputs[number]):
                return False
            if number == 0 and not alike(tensors, tuple(after)):
                return False
        return True

    def _afresh(self, number: int) -> Tensors:
        self.held.restore()
        return self.step(number)

    def _is_read(self, path: Place) -> bool:
        """Return whether resetting the value changes the model's outputs in the next two calls."""
        for number in TRIED:
            self.held.restore()
            for before in range(number):
                self.step(before)
            self._reset(path)
            for later in range(number, min(number + 2, CALLS)):
                try:
                    outputs = self.step(later)
                except Exception:  # a model may raise anything if a value is missing
                    return True
                if not alike(outputs, self.outputs[later]):
                    return True
        return False

    def _live(self, changed: list[Place]) -> list[Place]:
        """Return places that calls write and that influence a later output, possibly through other places.

        Found by changing the value before a call. The recorded calls alone need not show the influence: a delay may be
        longer than the sequence, a counter below its limit, a list still short, or a flag not yet set. Places from
        which an output is computed are live too, because other inputs may show what these calls hide.
        """
        candidates = [path for path, _ in snapshot.leaves(self.module) if path in self.written - self.fixed]
        candidates += [path for path in changed if path not in candidates and self._is_number(path)]
        growing = self._growing(changed)
        candidates += growing
        if not candidates:
            return []
        different = any(self._reached(candidates))
        self.reached = {path: self._reached([path]) if different else set() for path in candidates}
        shown = _live(self.reached)
        flowing = self._flowing([path for path in candidates if path in self.written], shown)
        live = _live({path: ends | flowing.get(path, set()) for path, ends in self.reached.items()})
        self.unseen = {path for path in live if path not in shown}
        longer = [one for one in live if one in growing]
        return [p for p in live if p not in growing] + [
            p for p in changed if p not in live and any(p[: len(one)] == one for one in longer)
        ]

    def _flowing(self, paths: list[Place], shown: list[Place]) -> flow.Reached:
        """Return what the calls after the first compute from the tensors at these paths, except for those `shown`."""
        if not (unknown := [path for path in paths if path not in shown]):
            return {}
        self.held.restore()
        self.step(0)
        try:
            with time_limit.stop_after(CALLS * self.limit_s):
                return flow.between(self.module, unknown, self.step, range(1, CALLS), shown)
        except (Exception, time_limit.OutOfTime):  # it may not run operator by operator, or what is unknown may matter
            return {path: {None} for path in unknown if self._has_one_form(path)}

    def _fixed(self, changed: list[Place]) -> set[Place]:
        """Return tensors that calls write but that keep their values: they are computed from themselves alone."""
        own = {path for path, value in self.held.initial.items() if isinstance(value, torch.Tensor)}
        written = [path for path in own & self.written if path not in changed]
        others = all(path in own and isinstance(one, torch.Tensor) for left in self.left for path, one in left.items())
        if not written or not others:
            return set()
        self.held.restore()
        try:
            with time_limit.stop_after(CALLS * self.limit_s):
                return flow.fixed(self.module, written, changed, self.step, range(CALLS))
        except (Exception, time_limit.OutOfTime):  # a model may not run operator by operator
            return set()

    def _is_kept(self, path: Place) -> bool:
        """Return whether a value is kept: in a buffer, or in a tensor that is computed from its former value."""
        return _is_buffer(path) or (path in self.reached.get(path, ()) and self._has_one_form(path))

    def _rewritten(self) -> list[Place]:
        """Return tensors that every call writes to in place, even with the same values."""
        now = {path: tensor for path, (tensor, _) in snapshot.tensors(self.module).items() if path in self.written}
        return [path for path, tensor in now.items() if tensor is self.held.initial.get(path)]

    def _is_number(self, path: Place) -> bool:
        return all(type(left.get(path, self._first(path))) in (int, float) for left in self.left)

    def _has_one_form(self, path: Place) -> bool:
        held = [left.get(path, self._first(path)) for left in self.left]
        return all(isinstance(one, torch.Tensor) and one.shape == held[-1].shape for one in held)

    def _growing(self, changed: list[Place]) -> list[Place]:
        """Return lists that every call of the search makes longer."""
        above = dict.fromkeys(
            path[:end]
            for path in changed
            for end, (kind, key) in enumerate(path)
            if end and kind == "item" and type(key) is int
        )
        return [
            one for one in above if all(a < b for a, b in itertools.pairwise(_length(one, left) for left in self.left))
        ]

    def _reached(self, paths: list[Place]) -> set[Place | None]:
        """Return places that end up different if the values at these paths change; None stands for an output."""
        found: set[Place | None] = set()
        changes = [NEAR, LARGE, *([CONTRARY] if any(map(self._is_number, paths)) else [])]
        for number, change in itertools.product(TRIED[:2], changes):
            self.held.restore()
            for before in range(number):
                self.step(before)
            for path in paths:
                with contextlib.suppress(*MISSING):
                    snapshot.put(self.module, path, _another(snapshot.take(self.module, path), change))
            found |= self._different(range(number, number + (2 if change == CONTRARY else 1)))
        return found

    def _different(self, numbers: range) -> set[Place | None]:
        """Do these calls; return places that end up different from the recorded calls, and None if an output does."""
        try:
            with time_limit.stop_after(self.limit_s):
                outputs = [self.step(number) for number in numbers]
        except (Exception, time_limit.OutOfTime):  # a model may raise anything for an unexpected value, or not return
            return {None}
        left, known = self.held.changes(), self.left[numbers[-1]]
        found: set[Place | None] = {p for p in left.keys() | known.keys() if not _equal(left.get(p), known.get(p))}
        same = all(alike(one, self.outputs[number]) for number, one in zip(numbers, outputs, strict=True))
        return found if same else found | {None}

    def _reset(self, path: Place) -> None:
        with contextlib.suppress(*MISSING):
            if path in self.held.initial:
                snapshot.put(self.module, path, self.held.value(path))
            else:
                snapshot.remove(self.module, path)

    def _always_changes(self, path: Place) -> bool:
        """Return whether every call changes the value."""
        values = [self._first(path), *(left.get(path, self._first(path)) for left in self.left)]
        return not any(_equal(one, other) for one, other in itertools.pairwise(values))

    def _settles(self, path: Place) -> bool:
        values = [left.get(path, self._first(path)) for left in self.left]
        return all(_equal(value, values[0]) for value in values)

    def _first(self, path: Place) -> Any:
        return self.held.value(path) if path in self.held.initial else None

    def _refused(self, paths: Sequence[Place], what: str, remedy: str) -> ExportError:
        return ExportError(f"the model {what} {named(self.module, paths)}", remedy)


def _live(reached: flow.Reached) -> list[Place]:
    """Return the places that reach an output, perhaps through other places."""
    live: list[Place] = []
    while more := [p for p, ends in reached.items() if p not in live and (None in ends or ends & set(live))]:
        live += more
    return live


def _another(value: Any, change: int) -> Any:
    """Return a different value of the same form: a nearby one, a large one, or a number that compares differently."""
    if type(value) in (int, float):
        return contrary.of(value) if change == CONTRARY else type(value)(value + (1000000 if change else 1))
    if isinstance(value, (list, tuple)) and value:
        return value * (LONG // len(value) + 1)
    if not isinstance(value, torch.Tensor) or change == CONTRARY:
        return value
    if value.layout is not torch.strided:
        return value * 2  # other operators have no kernel
    if value.dtype == torch.bool:
        return ~value
    if value.is_floating_point() or value.is_complex():
        return torch.nan_to_num(value, 0.0, 1.0, -1.0) * 2 + (1000 if change else 1)
    return value + (min(torch.iinfo(value.dtype).max // 2, 1000000) if change else 1)


def _length(above: Place, left: dict[Place, Any]) -> int:
    """Return the number of items of a list in which a call left something."""
    return len({path[len(above)] for path in left if path[: len(above)] == above and len(path) > len(above)})


def _line(module: torch.nn.Module, path: Place) -> str:
    with contextlib.suppress(*MISSING):
        where = snapshot.place(module, path)
        return f" ({where})" if where else ""
    return ""


def _is_buffer(path: Place) -> bool:
    return (len(path) > 1 and path[-2] == ("vars", "_buffers")) or path[-1][0] == "script"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return snapshot.same(one, other)
    return snapshot.equal(one, other)


def alike(one: Tensors, other: Tensors) -> bool:
    """Return whether two calls returned the same, apart from the noise of kernels that are not bit-reproducible."""
    return len(one) == len(other) and all(map(_alike, one, other))


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point() and not one.is_complex():
        return torch.equal(one, other)
    finite = other[other.isfinite()]
    bound = NOISE * float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other.to(one.device), rtol=0.0, atol=bound, equal_nan=True)
