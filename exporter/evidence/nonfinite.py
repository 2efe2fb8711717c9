"""Cases with NaN or infinity in an input: where eager propagates the value, an artifact must propagate it too.

If eager removes the value, so that all its outputs are finite, those of an artifact must be finite too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence

import torch

from exporter.core import source_lines, time_limit
from exporter.evidence.golden import Case, NonFinite
from exporter.model.tensors import Run, Tensors

VALUES = {"NaN": float("nan"), "infinity": float("inf")}
ALONE = 8  # the first ALONE inputs have cases of their own; the others share one per value
NAN, PLUS, MINUS, FINITE = 1, 2, 3, 4  # codes in NonFinite.expected; 0 where nothing is required


class Failure(enum.Enum):
    """Why a model has no outputs for an input."""

    RAISED = "raised"
    ENDLESS = "endless"


Attempt = Tensors | Failure


def make(
    example: Tensors, names: Sequence[str], in_double: Callable[[Sequence[Tensors], float], list[Attempt]], run: Run
) -> tuple[tuple[NonFinite, ...], tuple[str, ...]]:
    """Return the cases that artifacts must propagate, and a note for each value at which the model does not end.

    NaN or infinity in an output is required where eager (`run`) and float64 agree on it; what only one of them returns
    is an effect of its kernels.

    `in_double` runs the model in float64 on the CPU for each of the given inputs, with a time limit in seconds for each
    call. It runs first, because an index computed from NaN can kill a process that uses a GPU.
    """
    planned = [(inputs, value) for inputs in _groups(example) for value in VALUES]
    if not planned:
        return (), ()
    limit_s = time_limit.of(lambda: run(example))
    given = [_spoilt(example, inputs, value) for inputs, value in planned]
    found, notes = [], []
    for (inputs, value), data, reference in zip(planned, given, in_double(given, limit_s), strict=True):
        outputs = reference if isinstance(reference, Failure) else attempt(run, data, limit_s)
        spoilt = tuple(names[i] for i in inputs)
        if outputs is Failure.ENDLESS:
            notes.append(time_limit.said(f"{', '.join(spoilt)} holds {value}", limit_s))
        if isinstance(reference, Failure) or isinstance(outputs, Failure):
            continue
        expected = tuple(_brief(_demanded(e, r)) for e, r in zip(outputs, reference, strict=True))
        if all(map(_is_finite, (*outputs, *reference))):
            expected = tuple(torch.tensor(FINITE, dtype=torch.int8) for _ in outputs)
        if any(bool(codes.any()) for codes in expected):
            found.append(NonFinite(inputs, spoilt, value, expected))
    return tuple(found), tuple(notes)


def attempt(run: Run, data: Tensors, limit_s: float) -> Attempt:
    """Run a model for at most `limit_s` seconds; return its outputs, or why there are none."""
    try:
        with time_limit.stop_after(limit_s):
            return run(data)
    except time_limit.OutOfTime:
        return Failure.ENDLESS
    except Exception:
        return Failure.RAISED


def _groups(example: Tensors) -> Iterator[tuple[int, ...]]:
    """Yield groups of floating inputs: the first ALONE inputs one by one, then the rest together."""
    floating = [i for i, t in enumerate(example) if t.is_floating_point() and t.numel()]
    yield from ((i,) for i in floating[:ALONE])
    if others := tuple(floating[ALONE:]):
        yield others


def _spoilt(example: Tensors, inputs: Sequence[int], value: str) -> Tensors:
    """Return the example with the middle element of each of these inputs replaced by `value`."""
    data = tuple(t.clone(memory_format=torch.contiguous_format) if i in inputs else t for i, t in enumerate(example))
    for i in inputs:
        data[i].view(-1)[data[i].numel() // 2] = VALUES[value]
    return data


def _demanded(eager: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    if not eager.is_floating_point() or eager.shape != reference.shape:
        return torch.zeros((), dtype=torch.int8)
    return torch.where(_codes(eager) == _codes(reference), _codes(eager), 0)


def _is_finite(values: torch.Tensor) -> bool:
    return bool(values.isfinite().all())


def _codes(values: torch.Tensor) -> torch.Tensor:
    return (values.isnan() * NAN + values.isposinf() * PLUS + values.isneginf() * MINUS).to(torch.int8)


def _brief(codes: torch.Tensor) -> torch.Tensor:
    """Return a scalar if all codes are equal, else the codes unchanged."""
    return codes.reshape(-1)[0].clone() if codes.numel() and bool((codes == codes.reshape(-1)[0]).all()) else codes


def lost(case: NonFinite, example: Case, run: Run, outputs: Sequence[str]) -> str:
    """Describe what an artifact fails to propagate; "" if it propagates everything. `run` may raise."""
    at = ", ".join(
        f"{name}{_index(example.inputs[i].numel() // 2, example.inputs[i].shape)}"
        for i, name in zip(case.inputs, case.names, strict=True)
    )
    given = f"when {at} is {case.value}"
    try:
        found = run(_spoilt(example.inputs, case.inputs, case.value))
    except Exception as error:
        said = source_lines.message(error) or type(error).__name__
        return f"{case.value} is not propagated: the artifact fails {given}: {said}"
    wrong_in: dict[str, str] = {}  # what is wrong, by output
    for name, got, expected in zip(outputs, found, case.expected, strict=False):
        if got.is_floating_point() and bool(expected.any()):
            if expected.numel() > 1 and got.shape != expected.shape:  # the values decide how many there are
                wrong_in[name] = f"{case.value} is not propagated: {name} has another size {given}"
                continue
            wrong = (expected != 0) & (_codes(got.detach().cpu()) != torch.where(expected == FINITE, 0, expected))
            if bool(wrong.any()):
                wrong_in[name] = _said(name, got, expected.expand(got.shape), wrong, given)
    if not wrong_in:
        return ""
    first, *others = wrong_in
    more = f"; {' and '.join(others)} {'differ' if others[1:] else 'differs'} too" if others else ""
    return f"{wrong_in[first]}{more}"


def _said(name: str, got: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor, given: str) -> str:
    place = int(wrong.reshape(-1).to(torch.int8).argmax())
    if int(expected.reshape(-1)[place]) == FINITE:
        spoilt = float(got.reshape(-1)[place])
        return f"{name}{_index(place, got.shape)} is {spoilt:.4g} {given}; eager returns finite numbers"
    wanted = "NaN" if int(expected.reshape(-1)[place]) == NAN else "infinity"
    number = float(got.reshape(-1)[place])
    found = f"{name}{_index(place, got.shape)} is {number:.4g}"
    return f"{wanted} is not propagated: {found} {given}; eager returns {wanted}"


def _index(place: int, shape: Sequence[int]) -> str:
    index: list[int] = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.insert(0, at)
    return str(index) if index else ""
