"""Goldens: inputs with the outputs that eager gives, in its own precision and in float64.

The reference is eager in float64 on the CPU. A model that does not run in float64 is its own reference, and the record
says so.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from exporter import diagnosis, places, precision, values
from exporter.contract import Sizes, describe
from exporter.errors import ArtifactError, ExporterError, ExportError
from exporter.job import Findings
from exporter.records import FP32, Range, Tolerance

Tensors = tuple[torch.Tensor, ...]
SCHEMA = 1
CASE_OPERATIONS = 300e9  # floating-point operations of one case: some seconds in float64 on two cores
CASE_BYTES = 100e6  # of one case's inputs
RANDOM = "random numbers"


@dataclass(frozen=True)
class Case:
    """One case: CPU tensors in the contract's order."""

    name: str
    seed: int
    inputs: Tensors
    eager: Tensors
    reference: Tensors


@dataclass(frozen=True)
class Golden:
    """Cases with the tolerance that was fixed for them. The first case is the example.

    `precisions` hold what else a golden is judged by where an artifact computes in another precision.
    """

    cases: tuple[Case, ...]
    tolerance: Tolerance
    precisions: Mapping[str, Precision] = field(default_factory=dict)

    def of(self, precision: str) -> Golden:
        """The golden for artifacts of one precision. ArtifactError when it was made without."""
        if precision == FP32:
            return self
        if precision not in self.precisions:
            raise ArtifactError(f"the golden was made without {precision}", "export again")
        found = self.precisions[precision]
        eager = found.eager or [case.eager for case in self.cases]
        cases = (replace(c, eager=e) for c, e in zip(self.cases, eager, strict=True))
        return Golden(tuple(c for c in cases if c.name not in found.without), found.tolerance)


@dataclass(frozen=True)
class Precision:
    """The tolerance of a precision, and what eager gives in it for each case; nothing where that is float32's.

    `without` names cases that it is not judged by.
    """

    tolerance: Tolerance
    eager: tuple[Tensors, ...] = ()
    without: tuple[str, ...] = ()


def make(
    module: torch.nn.Module,
    inputs: Callable[[Sizes, int], Tensors],
    plan: Sequence[tuple[Sizes, int]],
    symbols: dict[str, Range],
    tolerance: Tolerance,
    device: str,
    whole: Collection[str] = (),
) -> tuple[Golden, Findings]:
    """Run eager at every planned size and seed, and at the first with other values.

    `module` is moved to float64 and back, never copied. Largest sizes are halved until a case is expected to fit
    CASE_OPERATIONS and CASE_BYTES, but for the cases named in `whole`.
    """
    limit, notes = _Limit(module, inputs(*plan[0]), device), []
    chosen: dict[tuple[str, int], Tensors] = {}
    for sizes, seed in plan:
        if describe(sizes) in whole:
            fitting, data = sizes, inputs(sizes, seed)
        else:
            fitting, data = _shrink(sizes, seed, inputs, plan[0][0], symbols, limit)
        if fitting != sizes:
            notes.append(
                f"{describe(sizes)} is too large to check in reasonable time; checked up to {describe(fitting)}"
            )
        chosen.setdefault((describe(fitting), seed), data)
    planned, example = len(chosen), next(iter(chosen.values()))
    for change, data in values.changed(example).items():
        if is_settled(module, data, device, tolerance):
            chosen[f"{describe(plan[0][0])} {change}", plan[0][1]] = data
    eager = []
    for (name, _), data in chosen.items():
        with naming(name):
            eager.append(run(module, data, device))
    before = _state(module)
    again = run(module, example, device)
    repeatable = all(_same(a, b) for a, b in zip(again, eager[0], strict=True))
    if not repeatable:
        notes.append(f"{diagnosis.UNSTEADY}: {_why_unsteady(before, _state(module))}")
    references, kind = _references(module, list(chosen.values()), eager, device)
    cases = tuple(
        Case(name, seed, data, outputs, reference)
        for ((name, seed), data), outputs, reference in zip(chosen.items(), eager, references, strict=True)
    )
    names = tuple(f"{case.name} seed {case.seed}" if case.seed else case.name for case in cases)
    findings = Findings(names, kind, tolerance, _noise(cases[:planned]), repeatable, tuple(dict.fromkeys(notes)))
    return Golden(cases, tolerance), findings


def in_precisions(
    made: Golden, module: torch.nn.Module, tolerances: Mapping[str, Tolerance], outputs: tuple[str, ...], device: str
) -> tuple[dict[str, Precision], tuple[str, ...]]:
    """What eager gives for each case in other precisions, with their tolerances; and notes where it does not run.

    There, and for int8, artifacts are judged against float32's own error; int8 not by values that are far from any
    that it was calibrated with. `outputs` are dtypes by name.
    """
    found: dict[str, Precision] = {}
    notes: list[str] = []
    for name, tolerance in tolerances.items():
        eager: tuple[Tensors, ...] = ()
        if name != "int8":
            try:
                with precision.computing(module, name, outputs) as computes:
                    eager = tuple(run(computes, case.inputs, device) for case in made.cases)
            except Exception as error:  # whatever a model raises that was not written for it
                notes.append(f"eager does not run in {name}: {places.summary(error)}")
        far = tuple(case.name for case in made.cases if name == "int8" and case.name.endswith(f" {values.LARGE}"))
        found[name] = Precision(tolerance, eager, far)
    return found, tuple(notes)


def is_settled(module: torch.nn.Module, data: Tensors, device: str, tolerance: Tolerance) -> bool:
    """Whether the model takes these values, and gives what neither the inputs' rounding nor its own overturns."""
    try:
        outputs = run(module, data, device)
        others = [run(module, values.perturbed(data, sign), device) for sign in (1, -1)]
        (reference,), _ = _references(module, [data], [outputs], device)
        return all(values.settled(outputs, other, tolerance) for other in (*others, reference))
    except Exception:  # whatever a model raises at values that it was not made for
        return False


@contextlib.contextmanager
def naming(sizes: str) -> Iterator[None]:
    """What the model raises becomes an ExportError that says at which sizes."""
    try:
        yield
    except ExporterError:
        raise
    except Exception as error:
        raise ExportError(
            f"the model fails at {sizes or 'its example'}: {places.summary(error)}",
            "mend it or its inputs, or promise only the sizes that it takes: `sizes` of the recipe, "
            "--size NAME=MIN..MAX",
        ) from error


def _state(module: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """What tells whether a buffer was changed or replaced, and whether random numbers were drawn."""
    state = {
        f"buffer {name.removeprefix('model.')}": (id(buffer), buffer._version)
        for name, buffer in module.named_buffers()
    }
    return state | {RANDOM: (0, hash(torch.get_rng_state().numpy().tobytes()))}


def _why_unsteady(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str:
    changed = [name for name, state in after.items() if before.get(name) != state]
    if RANDOM in changed:
        return "the model draws random numbers"
    if changed:
        return f"the model changes its {', '.join(changed[:3])} at each call"
    return "its kernels do not repeat themselves"


class _Limit:
    """Expected cost of a case, by the floating-point operations of the example: the same on every machine."""

    def __init__(self, module: torch.nn.Module, example: Tensors, device: str) -> None:
        with FlopCounterMode(display=False) as counter:
            run(module, example, device)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()  # torch.cond was compiled under the counter; torch 2.11 would not take that back
        self._per_element = counter.get_total_flops() / sum(t.numel() for t in example)

    def allows(self, data: Tensors) -> bool:
        operations = self._per_element * sum(t.numel() for t in data)
        return operations <= CASE_OPERATIONS and sum(t.numel() * t.element_size() for t in data) <= CASE_BYTES


def _shrink(
    sizes: Sizes,
    seed: int,
    inputs: Callable[[Sizes, int], Tensors],
    base: Sizes,
    symbols: dict[str, Range],
    limit: _Limit,
) -> tuple[Sizes, Tensors]:
    data = inputs(sizes, seed)
    while not limit.allows(data):
        smaller = {n: _halved(s, base[n], symbols[n]) if n in symbols else s for n, s in sizes.items()}
        if smaller == sizes:
            break
        sizes, data = smaller, inputs(smaller, seed)
    return sizes, data


def _halved(size: int, least: int, bounds: Range) -> int:
    lower = [choice for choice in bounds.choices if least <= choice < size]
    return max(lower, default=size) if bounds.choices else min(size, max(least, size // 2))


def run(module: torch.nn.Module, data: Tensors, device: str) -> Tensors:
    """Outputs on the CPU. A model that changes its inputs in place changes copies."""
    with torch.no_grad():
        return tuple(t.detach().cpu() for t in module(*(t.to(device, copy=True) for t in data)))


def _references(
    module: torch.nn.Module, data: Sequence[Tensors], eager: Sequence[Tensors], device: str
) -> tuple[list[Tensors], str]:
    try:
        with _in_float64(module):
            return [
                _widen(run(module, _to_float64(one), "cpu"), e) for one, e in zip(data, eager, strict=True)
            ], "float64"
    except Exception:  # whatever a model does that was not written for float64
        return [tuple(t.double() if t.is_floating_point() else t for t in one) for one in eager], "eager"
    finally:
        module.to(device)


@contextlib.contextmanager
def _in_float64(module: torch.nn.Module) -> Iterator[None]:
    """Parameters and buffers in float64, and back to the very tensors they were."""
    module.to("cpu")
    tensors = [t for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()]
    kept = [t.data for t in tensors]
    default = torch.get_default_dtype()
    try:
        for tensor in tensors:
            tensor.data = tensor.data.double()
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data in zip(tensors, kept, strict=True):
            tensor.data = data


def _to_float64(data: Tensors) -> Tensors:
    return tuple(t.double() if t.is_floating_point() else t for t in data)


def _widen(outputs: Tensors, eager: Tensors) -> Tensors:
    """References have float64 where eager floats; other outputs are eager's own."""
    if [t.shape for t in outputs] != [t.shape for t in eager]:
        raise ValueError("float64 gives other shapes")
    return tuple(o.double() if e.is_floating_point() else e for o, e in zip(outputs, eager, strict=True))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num()) if a.is_floating_point() else torch.equal(a, b)


def _noise(cases: Sequence[Case]) -> float | None:
    """RMSE of eager against the reference over all floating outputs."""
    total, count = 0.0, 0
    for case in cases:
        for e, r in zip(case.eager, case.reference, strict=True):
            if e.is_floating_point():
                difference = (e.double() - r).nan_to_num(0.0, 0.0, 0.0)
                total += float(difference.square().sum())
                count += difference.numel()
    return math.sqrt(total / count) if count else None


def save(golden: Golden, path: Path) -> None:
    """Write a golden (docs/formats.md)."""
    torch.save(
        {
            "schema": SCHEMA,
            "tolerance": _plain_tolerance(golden.tolerance),
            "cases": [
                {
                    "name": c.name,
                    "seed": c.seed,
                    "inputs": _plain(c.inputs),
                    "eager": _plain(c.eager),
                    "reference": _plain(c.reference),
                }
                for c in golden.cases
            ],
            "precisions": {
                name: {
                    "tolerance": _plain_tolerance(p.tolerance),
                    "eager": [_plain(eager) for eager in p.eager],
                    "without": list(p.without),
                }
                for name, p in golden.precisions.items()
            },
        },
        path,
    )


def _plain_tolerance(tolerance: Tolerance) -> dict[str, float]:
    return {name: value for name, value in asdict(tolerance).items() if value is not None}


def _plain(tensors: Tensors) -> list[torch.Tensor]:
    return [t.contiguous().clone() for t in tensors]  # a view would carry its whole storage along


def read(path: Path) -> Golden:
    """Read a golden; ArtifactError when it is missing, broken or of another schema."""
    try:
        data: Any = torch.load(path, weights_only=True, map_location="cpu")
        if data["schema"] != SCHEMA:
            raise ArtifactError(
                f"{path}: schema {data['schema']} is not known, only {SCHEMA}", "use the exporter release that wrote it"
            )
        cases = tuple(
            Case(c["name"], c["seed"], tuple(c["inputs"]), tuple(c["eager"]), tuple(c["reference"]))
            for c in data["cases"]
        )
        precisions = {
            name: Precision(Tolerance(**p["tolerance"]), tuple(map(tuple, p["eager"])), tuple(p["without"]))
            for name, p in data.get("precisions", {}).items()
        }
        return Golden(cases, Tolerance(**data["tolerance"]), precisions)
    except ArtifactError:
        raise
    except Exception as error:  # whatever a broken pickle raises
        raise ArtifactError(f"{path} cannot be read as a golden: {error}", "export again") from error
