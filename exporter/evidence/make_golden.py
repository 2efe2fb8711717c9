"""Makes the cases of a golden: planned sizes and seeds, changed values, other precisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from exporter.core import precisions, source_lines, time_limit
from exporter.core.errors import ExporterError
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.core.probing import describe
from exporter.core.size_range import Range, Sizes
from exporter.core.tolerances import OutputTolerances
from exporter.evidence import eager, golden, nonfinite, operations, perturbations, repeatability
from exporter.evidence.findings import STEADY, Findings
from exporter.evidence.golden import Case, Golden, NonFinite, Precision
from exporter.model import precision
from exporter.model.tensors import Tensors

CASE_OPERATIONS = 300e9  # limit of one case, in floating-point operations: a few seconds in float64 on two cores
CASE_BYTES = 100e6  # limit of one case's inputs
NO_REFERENCE = "these weights have no float64 reference, so they are judged by eager's outputs in float32"
WORSE = (
    "is less accurate with layers in float32 than without, because such a layer returns float32 values, which are "
    "rounded at its border; artifacts are compared with float32 instead"
)

Cases = Sequence[tuple[Sizes, int]]  # the sizes and seed of each case
MakeInputs = Callable[[Sizes, int], Tensors]  # takes sizes and a seed
MakeReferences = Callable[  # like `eager.references_also`
    [torch.nn.Module, Sequence[Tensors], Sequence[Tensors], Sequence[tuple[Tensors, Tensors]]],
    tuple[list[Tensors], list[Tensors | None], str],
]


@dataclass(frozen=True)
class Plan:
    """The sizes and seed of each case, beginning with the example, and the ranges of the sizes.

    Sizes are halved until a case is expected to stay within CASE_OPERATIONS and CASE_BYTES, but for those in `whole`.
    With `unusual`, the example has further cases with changed values, with `nonfinite` also with NaN and infinity.
    `kept` names the layers that compute in float32 in half precisions.
    """

    cases: Cases
    symbols: Mapping[str, Range]
    whole: Collection[str] = ()
    unusual: bool = True
    nonfinite: bool = True
    kept: Sequence[str] = ()

    @property
    def base(self) -> Sizes:
        """Return the example's sizes."""
        return self.cases[0][0]

    def changed(self, change: str) -> CaseRecord:
        """Return the record of the example with changed values."""
        return CaseRecord(f"{describe(self.base)} {change}", self.cases[0][1], dict(self.base), change)


def make(
    module: torch.nn.Module,
    inputs: MakeInputs,
    plan: Plan,
    tolerance: OutputTolerances,
    device: str,
    make_references: MakeReferences = eager.references_also,
) -> tuple[Golden, Findings]:
    """Run eager at every planned size and seed, and with changed values at the first.

    `module` is converted to float64 and back in place. Raises ExportError if the model fails at a planned size.
    """
    limit = Limit(module, inputs(*plan.cases[0]), device)
    chosen, notes = _fitting(inputs, plan, limit)
    planned, example = len(chosen), next(iter(chosen.values()))
    limit_s = time_limit.of(lambda: eager.run(module, example, device))
    unusual: list[tuple[CaseRecord, Tensors, Tensors]] = []
    changes = perturbations.changed(example) if plan.unusual else {}
    for change, data in eager.safe_on_gpu(module, example, changes, device).items():
        try:
            given = eager.settled_outputs(module, data, device, tolerance, limit_s)
        except time_limit.OutOfTime:
            notes.append(time_limit.said(f"the values are {change}", limit_s))
            continue
        if given is not None:
            unusual.append((plan.changed(change), data, given))
    outputs, numbers = [], repeatability.generators(device)
    for case, data in chosen.items():
        with eager.naming(case.name):
            outputs.append(eager.run(module, data, device))
    draws = repeatability.generators(device) != numbers
    unsteady = repeatability.unsteady(module, example, outputs[0], device)
    if draws and unsteady in STEADY:
        calls = [partial(eager.run, module, data, device) for data in chosen.values()]
        why, said = repeatability.drawn(list(zip(calls, outputs, strict=True)))
        unsteady = why or unsteady
        notes += said
    if unsteady not in STEADY:
        tolerance = tolerance.without_eager()  # the error of an unrepeatable eager does not measure rounding
    both = [(data, given) for _, data, given in unusual]
    references, others, kind = make_references(module, list(chosen.values()), outputs, both)
    cases = [
        Case(case, data, given, reference)
        for (case, data), given, reference in zip(chosen.items(), outputs, references, strict=True)
    ]
    for (case, data, given), exact in zip(unusual, others, strict=True):
        if exact is None:
            notes.append(f"{case.name} was not checked, because the model fails there in float64")
        elif perturbations.settled(given, exact, tolerance):
            cases.append(Case(case, data, given, exact if kind == "float64" else eager.in_float64(given)))
    records, said = tuple(case.record for case in cases), tuple(dict.fromkeys(notes))
    found = Findings(records, kind, tolerance.highest, golden.noise(cases[:planned]), unsteady, said, tolerance.others)
    return Golden(tuple(cases), tolerance.highest, tolerances=tolerance.others), found


def nonfinite_of(
    module: torch.nn.Module, made: Golden, names: Sequence[str], device: str
) -> tuple[tuple[NonFinite, ...], tuple[str, ...]]:
    """Call `nonfinite.make` with the golden's example."""
    return nonfinite.make(
        made.cases[0].inputs,
        names,
        lambda given, limit_s: eager.attempts(module, given, limit_s),
        lambda data: eager.run(module, data, device),
    )


def add_samples(
    made: Golden, findings: Findings, module: torch.nn.Module, samples: Mapping[CaseRecord, Tensors], device: str
) -> tuple[Golden, Findings]:
    """Return the golden with the recipe's own samples added at the end; they are never reduced or left out."""
    if not samples:
        return made, findings
    outputs = []
    for case, data in samples.items():
        with eager.naming(case.name):
            outputs.append(eager.run(module, data, device))
    references, kind = eager.references(module, list(samples.values()), outputs)
    cases = tuple(
        Case(case, data, given, reference)
        for (case, data), given, reference in zip(samples.items(), outputs, references, strict=True)
    )
    kind = findings.reference if kind == findings.reference else "eager"
    return replace(made, cases=made.cases + cases), replace(
        findings, cases=findings.cases + tuple(samples), samples=len(cases), reference=kind
    )


def _fitting(inputs: MakeInputs, plan: Plan, limit: Limit) -> tuple[dict[CaseRecord, Tensors], list[str]]:
    """Return the inputs of the plan's cases, and notes about reduced cases."""
    chosen: dict[CaseRecord, Tensors] = {}
    notes: list[str] = []
    for sizes, seed, data in _cut_down(inputs, plan, limit, notes):
        chosen.setdefault(CaseRecord(describe(sizes), seed, dict(sizes)), data)
    return chosen, notes


def fitting(inputs: MakeInputs, plan: Plan, limit: Limit) -> tuple[dict[str, Sizes], list[str]]:
    """Return the distinct sizes of the plan's cases by name, and notes about reduced cases."""
    notes: list[str] = []
    sizes = {describe(sizes): sizes for sizes, _, _ in _cut_down(inputs, plan, limit, notes)}
    return sizes, notes


def _cut_down(inputs: MakeInputs, plan: Plan, limit: Limit, notes: list[str]) -> Iterator[tuple[Sizes, int, Tensors]]:
    """Yield sizes, seed and inputs of each case of the plan, with sizes reduced to what the limit allows."""
    for sizes, seed in plan.cases:
        if describe(sizes) in plan.whole:
            fitting, data = sizes, inputs(sizes, seed)
        else:
            fitting, data = _shrink(sizes, seed, inputs, plan, limit)
        if fitting != sizes:
            notes.append(
                f"{describe(sizes)} is too large to check in reasonable time; checked up to {describe(fitting)}"
            )
        yield fitting, seed, data


def in_precisions(
    made: Golden,
    module: torch.nn.Module,
    tolerances: Mapping[str, Tolerance],
    outputs: tuple[str, ...],
    device: str,
    kept: Sequence[str] = (),
) -> tuple[dict[str, Precision], tuple[str, ...]]:
    """Return eager's outputs in other precisions with their tolerances, and notes about precisions in which it fails.

    In these, and in int8, artifacts are compared with eager's outputs in float32. int8 leaves out cases whose values
    are far beyond its calibration data. Precisions that store weights in fewer bytes have the outputs of these weights
    in float64 instead. `outputs` are the contract's output dtypes. In half precisions and with stored weights, the
    layers in `kept` and in the precision's name compute in float32.
    """
    found: dict[str, Precision] = {}
    notes: list[str] = []
    for name, tolerance in tolerances.items():
        given: tuple[Tensors, ...] = ()
        stored: tuple[Tensors, ...] = ()
        base, spared = precisions.base(name), (*kept, *precisions.kept(name))
        try:
            if base in precisions.SMALL_WEIGHTS:
                with precision.computing(module, base, outputs, spared) as computes:
                    ours = [case.inputs for case in made.cases]
                    usual = [eager.run(computes, one, device) for one in ours]
                    wide, kind = eager.references(computes, ours, usual)
                    stored = tuple(wide)
                    notes += [f"{name}: {NO_REFERENCE}"] if kind != "float64" else []
            elif base != "int8":
                with precision.computing(module, base, outputs, spared) as computes:
                    given = tuple(eager.run(computes, case.inputs, device) for case in made.cases)
                if spared and base in precision.DTYPES:
                    with precision.computing(module, base, outputs) as computes:
                        plain = tuple(eager.run(computes, case.inputs, device) for case in made.cases)
                    if is_worse(made, given, plain, tolerance):
                        given = ()
                        notes.append(f"eager in {name} {WORSE}")
        except Exception as error:  # a model not written for this precision can raise anything
            notes.append(failure(name, error))
        far = tuple(case.name for case in made.cases if base == "int8" and case.record.values == perturbations.LARGE)
        found[name] = Precision(tolerance, given, far, stored)
    return found, tuple(notes)


def failure(precision: str, error: Exception) -> str:
    """Return the note on a precision in which eager fails."""
    if isinstance(error, ExporterError):
        return f"{precision}: {error}"
    return f"eager does not run in {precision}: {source_lines.summary(error)}"


def is_worse(made: Golden, kept: Sequence[Tensors], plain: Sequence[Tensors], tolerance: Tolerance) -> bool:
    """Return whether outputs with layers in float32 are clearly farther from the reference than those without.

    That happens if a layer returns float32 values in the half precision too: at its border they are rounded.
    """
    for case, ours, theirs in zip(made.cases, kept, plain, strict=True):
        for one, other, exact in zip(ours, theirs, case.reference, strict=True):
            if exact.is_floating_point():
                wide = exact.double()
                error, usual = ((t.double().cpu() - wide).square().mean().sqrt().item() for t in (one, other))
                if error > tolerance.k * usual + tolerance.atol:
                    return True
    return False


class Limit:
    """Estimates the cost of a case from the floating-point operations of the example, independent of the machine."""

    def __init__(self, module: torch.nn.Module, example: Tensors, device: str, calls: int = 1) -> None:
        """Count the operations of the example; `calls` is the number of calls per case."""
        counted = operations.count(lambda: eager.run(module, example, device))
        self.most_calls = int(CASE_OPERATIONS // max(counted, 1))  # of the example, in the time of one case
        self._calls = calls
        self._per_element = calls * counted / sum(t.numel() for t in example)

    def allows(self, data: Tensors) -> bool:
        operations = self._per_element * sum(t.numel() for t in data)
        size = self._calls * sum(t.numel() * t.element_size() for t in data)
        return operations <= CASE_OPERATIONS and size <= CASE_BYTES


def _shrink(sizes: Sizes, seed: int, inputs: MakeInputs, plan: Plan, limit: Limit) -> tuple[Sizes, Tensors]:
    base, symbols, data = plan.base, plan.symbols, inputs(sizes, seed)
    while not limit.allows(data):
        smaller = {n: _halved(s, base[n], symbols[n]) if n in symbols else s for n, s in sizes.items()}
        if smaller == sizes:
            break
        sizes, data = smaller, inputs(smaller, seed)
    return sizes, data


def _halved(size: int, least: int, bounds: Range) -> int:
    lower = [choice for choice in bounds.choices if least <= choice < size]
    if bounds.choices:
        return max(lower, default=size)
    return min(size, max(least, size // 2 // bounds.multiple_of * bounds.multiple_of))
