"""Makes the golden of a model with state: sequences of calls that start from the initial state.

Eager and the float64 reference each carry their own state through a sequence.

This file is long because every step of `make_golden` has another form for sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from exporter.core import precisions, time_limit
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.core.tolerances import OutputTolerances
from exporter.evidence import casts, eager, golden, make_golden, nonfinite, perturbations, repeatability
from exporter.evidence.findings import Findings
from exporter.evidence.golden import Case, Golden, NonFinite, Precision
from exporter.evidence.make_golden import MakeInputs
from exporter.model import precision
from exporter.model.flattening import FlatModule
from exporter.model.state.search import alike
from exporter.model.state.snapshot import Form, Place, Snapshot
from exporter.model.state.stateful import State, StatefulModule
from exporter.model.tensors import Tensors

STEPS = 8  # calls per sequence
SEQUENCES = 2  # per size; the second one checks the reset
Outputs = list[Tensors]


@dataclass(frozen=True)
class Calls:
    """Calls eager in sequences, with the state kept by the model itself. With `outside`, outputs include the state."""

    module: StatefulModule
    held: Snapshot
    outside: bool
    strange: set[Place] = field(default_factory=set)  # places seen to change that are not part of the known state

    @property
    def state(self) -> State:
        """Return where the model keeps its state."""
        return self.module.state

    @property
    def plain(self) -> FlatModule:
        """Return the model with flat inputs and outputs and its state inside."""
        return FlatModule(self.module.model, self.module.example, self.module.leave_out).eval()

    def run(self, given: Sequence[Tensors], device: str, form: Form | None = None) -> Outputs:
        """Return the outputs of each call on the CPU, starting from the initial state, which is restored at the end."""
        return self.run_as(self.plain, given, device, form)

    def run_as(self, flat: torch.nn.Module, given: Sequence[Tensors], device: str, form: Form | None = None) -> Outputs:
        """Do the same with another module around the model, such as one that casts inputs and outputs."""
        self.held.restore(form)
        try:
            return [self._call(flat, data, device) for data in given]
        finally:
            if form is None:
                self.strange.update(path for path in self.held.changes() if path not in self.state.known)
            self.held.restore()

    def _call(self, flat: torch.nn.Module, data: Tensors, device: str) -> Tensors:
        outputs = eager.run(flat, data, device)
        return outputs + tuple(t.cpu() for t in self.state.now(self.module.model)) if self.outside else outputs

    def references(self, given: Sequence[Outputs], outputs: Sequence[Outputs]) -> tuple[list[Outputs], bool]:
        """Return the float64 outputs of each sequence, computed on the CPU, and True.

        If the model fails in float64, return eager's own outputs and False.
        """
        wide = [[eager.in_float64(data) for data in sequence] for sequence in given]

        def run_all() -> list[Outputs]:
            return [self.run(sequence, "cpu", Form(torch.float64, "cpu")) for sequence in wide]

        try:
            found = list(map(_widen, eager.in_double(self.module, run_all), outputs))
            pairs = [pair for both in zip(outputs, found, strict=True) for pair in zip(*both, strict=True)]
            is_usable = all(casts.agree(self.module, *pair) for pair in pairs)
            return (found, True) if is_usable else (list(map(_widen, outputs, outputs)), False)
        except Exception:  # a model not written for float64 can raise anything
            return list(map(_widen, outputs, outputs)), False
        finally:
            self.held.restore()


def nonfinite_of(
    calls: Calls, made: Golden, names: Sequence[str], device: str
) -> tuple[tuple[NonFinite, ...], tuple[str, ...]]:
    """Call `nonfinite.make` with the first call of a sequence."""
    first = made.cases[0].inputs
    example = first[: len(first) - (len(calls.state.paths) if calls.outside else 0)]

    def in_double(given: Sequence[Tensors], limit_s: float) -> list[nonfinite.Attempt]:
        def run(data: Tensors) -> Tensors:
            return calls.run([eager.in_float64(data)], "cpu", Form(torch.float64, "cpu"))[0]

        try:
            return eager.in_double(calls.module, lambda: [nonfinite.attempt(run, one, limit_s) for one in given])
        finally:
            calls.held.restore()

    return nonfinite.make(example, names, in_double, lambda data: calls.run([data], device)[0])


def _widen(found: Outputs, outputs: Outputs) -> Outputs:
    return [eager.widen(f, o) for f, o in zip(found, outputs, strict=True)]


def make(
    calls: Calls, inputs: MakeInputs, plan: make_golden.Plan, tolerance: OutputTolerances, device: str
) -> tuple[Golden, Findings]:
    """Run eager through SEQUENCES of STEPS calls at every planned size, and with changed values at the first.

    If the state is outside, the inputs of each first step end with the initial state. Otherwise this works like
    `make_golden.make`.
    """
    chosen, notes = _planned(calls, inputs, plan, device)
    planned = len(chosen)
    first = next(iter(chosen.values()))
    limit_s = time_limit.of(lambda: calls.run(first, device))
    for change in perturbations.CHANGES if plan.unusual else ():
        changed = [perturbations.changed(data).get(change) for data in first]
        given = [data for data in changed if data is not None]
        try:
            if len(given) == STEPS and _is_settled(calls, given, device, tolerance, limit_s):
                chosen[plan.changed(change)] = given
        except time_limit.OutOfTime:
            notes.append(time_limit.said(f"the values are {change}", limit_s))
    numbers = repeatability.generators(device)
    made, wide = _run(calls, chosen, device)
    draws = repeatability.generators(device) != numbers
    repeats = all(map(alike, calls.run(first, device), calls.run(first, device)))
    unsteady = "" if repeats else repeatability.DRAWS if draws else repeatability.HIDDEN
    if draws and not unsteady:
        again = [partial(_joined_run, calls, given, device) for given in chosen.values()]
        outputs = [_joined([case.eager for case in sequence]) for sequence in made]
        unsteady, drawn = repeatability.drawn(list(zip(again, outputs, strict=True)))
        notes += drawn
    if unsteady:
        tolerance = tolerance.without_eager()
    noise = golden.noise([case for sequence in made[:planned] for case in sequence])
    flat = tuple(case for sequence in made for case in sequence)
    records = tuple(case.record for case in flat)
    reference = "float64" if wide else "eager"
    said = tuple(dict.fromkeys(notes))
    findings = Findings(records, reference, tolerance.highest, noise, unsteady, said, tolerance.others)
    return Golden(flat, tolerance.highest, tolerances=tolerance.others), findings


def _joined_run(calls: Calls, given: Outputs, device: str) -> Tensors:
    return _joined(calls.run(given, device))


def _joined(outputs: Outputs) -> Tensors:
    return tuple(one for call in outputs for one in call)


def _run(calls: Calls, chosen: Mapping[CaseRecord, Outputs], device: str) -> tuple[list[list[Case]], bool]:
    """Return the cases of each sequence, given by its first record, and whether their reference is in float64."""
    outputs: list[Outputs] = []
    for first, given in chosen.items():
        with eager.naming(first.name):
            outputs.append(calls.run(given, device))
    references, wide = _references(calls, list(chosen.values()), outputs)
    zipped = zip(chosen.items(), outputs, references, strict=True)
    return [list(_cases(calls, first, given, got, reference)) for (first, given), got, reference in zipped], wide


def _references(calls: Calls, given: Sequence[Outputs], outputs: Sequence[Outputs]) -> tuple[list[Outputs], bool]:
    """Return the references of sequences, and whether they are in float64; eager's outputs where only that has NaN."""
    found, wide = calls.references(list(given), list(outputs))
    if all(map(eager.as_finite, found, outputs)):
        return found, wide
    return list(map(_widen, outputs, outputs)), False


def add_samples(
    made: Golden, findings: Findings, calls: Calls, samples: Mapping[CaseRecord, Tensors], device: str
) -> tuple[Golden, Findings]:
    """Return the golden with the recipe's own samples added as the calls of one more sequence."""
    if not samples:
        return made, findings
    (own,), wide = _run(calls, {CaseRecord("the samples"): list(samples.values())}, device)
    records = [replace(record, step=case.step) for record, case in zip(samples, own, strict=True)]
    cases = tuple(replace(case, record=record) for case, record in zip(own, records, strict=True))
    return replace(made, cases=made.cases + cases), replace(
        findings,
        cases=findings.cases + tuple(records),
        samples=len(cases),
        reference=findings.reference if wide else "eager",
    )


def _planned(
    calls: Calls, inputs: MakeInputs, plan: make_golden.Plan, device: str
) -> tuple[dict[CaseRecord, Outputs], list[str]]:
    """Return the inputs of each sequence by its first case, the example first, and notes about reduced cases."""
    limit = make_golden.Limit(calls.plain, inputs(*plan.cases[0]), device, calls=SEQUENCES * STEPS)
    calls.held.restore()
    firsts, notes = make_golden.fitting(inputs, plan, limit)
    chosen: dict[CaseRecord, Outputs] = {}
    for name, sizes in firsts.items():
        for seed in range(SEQUENCES):
            chosen[CaseRecord(name, seed, dict(sizes))] = [inputs(sizes, _seed(seed, step)) for step in range(STEPS)]
    return chosen, notes


def _seed(sequence: int, step: int) -> int:
    """Return the seed of a step; the first step uses the number of the sequence."""
    return sequence if step == 0 else 1000 * (sequence + 1) + step


def _cases(
    calls: Calls, first: CaseRecord, given: Sequence[Tensors], outputs: Outputs, references: Outputs
) -> Iterator[Case]:
    for step, (data, got, reference) in enumerate(zip(given, outputs, references, strict=True)):
        if calls.outside and step == 0:
            data = data + calls.state.widened([t.shape for t in got[len(got) - len(calls.state.paths) :]])
        name = f"{first.name} step {step + 1}" if step else first.name
        yield Case(replace(first, name=name, step=step), data, got, reference)


def _is_settled(calls: Calls, given: Outputs, device: str, tolerance: OutputTolerances, limit_s: float) -> bool:
    """Do what `eager.is_settled` does, for a sequence."""
    try:
        with time_limit.stop_after(limit_s):
            outputs = calls.run(given, device)
        others = [calls.run([perturbations.perturbed(data, sign) for data in given], device) for sign in (1, -1)]
        others.append(calls.references([given], [outputs])[0][0])
    except Exception:  # at unusual values, a model can raise anything
        return False
    return all(perturbations.settled(o, a, tolerance) for other in others for o, a in zip(outputs, other, strict=True))


def in_precisions(
    made: Golden,
    calls: Calls,
    tolerances: Mapping[str, Tolerance],
    outputs: tuple[str, ...],
    device: str,
    kept: Sequence[str] = (),
) -> tuple[dict[str, Precision], tuple[str, ...]]:
    """Do what `make_golden.in_precisions` does, with the state carried in the precision too.

    `outputs` are the dtypes of the model's own outputs, without the state.
    """
    found: dict[str, Precision] = {}
    notes: list[str] = []
    for name, tolerance in tolerances.items():
        given: tuple[Tensors, ...] = ()
        stored: tuple[Tensors, ...] = ()
        base, spared = precisions.base(name), (*kept, *precisions.kept(name))
        try:
            if base in precisions.SMALL_WEIGHTS:
                stored, wide = _with_stored_weights(made, calls, base, device, spared)
                notes += [] if wide else [f"{name}: {make_golden.NO_REFERENCE}"]
            elif base != "int8":
                given = _run_in(made, calls, base, outputs, device, spared)
                if spared and base in precision.DTYPES:
                    calls.held.restore()
                    plain = _run_in(made, calls, base, outputs, device, ())
                    if make_golden.is_worse(made, given, plain, tolerance):
                        given = ()
                        notes.append(f"eager in {name} {make_golden.WORSE}")
        except Exception as error:  # a model not written for this precision can raise anything
            notes.append(make_golden.failure(name, error))
        finally:
            calls.held.restore()
        far = tuple(case.name for case in made.cases if base == "int8" and case.record.values == perturbations.LARGE)
        found[name] = Precision(tolerance, given, far, stored)
    return found, tuple(notes)


def _with_stored_weights(
    made: Golden, calls: Calls, name: str, device: str, kept: Sequence[str]
) -> tuple[tuple[Tensors, ...], bool]:
    """Return the outputs of every case with the weights that a precision stores in fewer bytes.

    Also return whether they were computed in float64.
    """
    given = list(_sequences(made, len(calls.state.paths) if calls.outside else 0))
    calls.held.restore()
    try:
        with precision.computing(calls.plain, name, (), kept):
            ours = replace(calls, held=Snapshot(calls.held.module))  # the other one would put the original weights back
            found, wide = _references(ours, given, [ours.run(sequence, device) for sequence in given])
    finally:
        calls.held.restore()
    return tuple(itertools.chain.from_iterable(found)), wide


def _run_in(
    made: Golden, calls: Calls, name: str, outputs: tuple[str, ...], device: str, kept: Sequence[str]
) -> tuple[Tensors, ...]:
    """Return eager's outputs of every case in a precision."""
    states = len(calls.state.paths) if calls.outside else 0
    with precision.computing(calls.plain, name, outputs, kept) as flat:
        form = Form(precision.DTYPES.get(name))
        runs = [calls.run_as(flat, s, device, form) for s in _sequences(made, states)]
    found = zip(itertools.chain.from_iterable(runs), made.cases, strict=True)
    return tuple(_as_before(o, c.eager) for o, c in found)


def _sequences(made: Golden, states: int) -> Iterator[Outputs]:
    """Yield the inputs of each sequence, without the state."""
    current: Outputs = []
    for case in made.cases:
        if case.step == 0 and current:
            yield current
            current = []
        data = case.inputs[: len(case.inputs) - states] if case.step == 0 else case.inputs
        current.append(data)
    if current:
        yield current


def _as_before(outputs: Tensors, known: Tensors) -> Tensors:
    """Convert outputs to the contract's dtypes; state outside of the model keeps its dtype in every precision."""
    return tuple(o.to(k.dtype) for o, k in zip(outputs, known, strict=True))
