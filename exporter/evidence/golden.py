"""Goldens: inputs with eager's outputs, in its own precision and in float64. Reads and writes golden files."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from exporter.core import precisions
from exporter.core.contract_records import FP32
from exporter.core.errors import ArtifactError
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.model import tensor_files
from exporter.model.tensors import Tensors, in_float64, is_inexact

SCHEMA = 3  # the schema written
PICKLED = (1, 2)  # older schemas written by torch.save, which can still be read: without and with sequences
KINDS = ("inputs", "eager", "reference")


@dataclass(frozen=True)
class Case:
    """One case: CPU tensors in the contract's order.

    For a model with state, a case is one call of a sequence. `step` 0 starts from the initial state, which is among its
    inputs if the contract exposes the state; later steps continue from the previous case.
    """

    record: CaseRecord
    inputs: Tensors
    eager: Tensors
    reference: Tensors
    stored: Tensors = ()  # the reference with the weights of `Precision.stored`

    @property
    def name(self) -> str:
        """Return the name in the record."""
        return self.record.name

    @property
    def step(self) -> int | None:
        """Return the step in the record."""
        return self.record.step


@dataclass(frozen=True)
class NonFinite:
    """The example with `value` (NaN or infinity) in the middle element of each of `inputs`, whose names are `names`.

    `expected` marks, for each output, the elements that `value` must reach. It holds codes of `nonfinite`, or a single
    code if all elements have the same one.
    """

    inputs: tuple[int, ...]
    names: tuple[str, ...]
    value: str
    expected: Tensors


@dataclass(frozen=True)
class Golden:
    """Cases and their tolerance. The first case is the example.

    `precisions` holds what differs for artifacts that compute in another precision. `nonfinite` holds the values that
    artifacts of every precision must propagate, or None if this was not determined. `tolerances` holds those of outputs
    in other dtypes than the one that `tolerance` is for, by dtype.
    """

    cases: tuple[Case, ...]
    tolerance: Tolerance
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    nonfinite: tuple[NonFinite, ...] | None = None
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, precision: str) -> Golden:
        """Return the golden for artifacts of one precision. Raises ArtifactError if the golden lacks this precision."""
        if precision == FP32:
            return self
        if precision not in self.precisions:
            raise ArtifactError(f"the golden was made without {precision}", "export again")
        found = self.precisions[precision]
        eager = found.eager or [case.eager for case in self.cases]
        if precisions.base(precision) in precisions.SMALL_WEIGHTS and not found.stored:
            raise ArtifactError(f"the golden lacks the outputs of the weights in {precision}", "export again")
        stored = found.stored or [()] * len(self.cases)
        cases = [replace(c, eager=e, stored=s) for c, e, s in zip(self.cases, eager, stored, strict=True)]
        return Golden(tuple(_without(cases, found.without)), found.tolerance, nonfinite=self.nonfinite)


@dataclass(frozen=True)
class Precision:
    """The tolerance of a precision, and eager's outputs for each case; empty if those of float32 apply.

    `without` names cases that are not checked in this precision. `stored` holds the outputs in float64 with the weights
    that a precision stores in fewer bytes.
    """

    tolerance: Tolerance
    eager: tuple[Tensors, ...] = ()
    without: tuple[str, ...] = ()
    stored: tuple[Tensors, ...] = ()


def _without(cases: Sequence[Case], names: Collection[str]) -> Iterator[Case]:
    """Yield the cases that are not named; of a sequence, only those before the first named one."""
    whole = True
    for case in cases:
        whole = case.name not in names and (whole or not case.step)
        if whole:
            yield case


def alone(golden: Golden) -> Golden:
    """Return the golden with cases that can be run alone: a later step's inputs end with eager's state before it.

    This is for artifacts that take the state as inputs.
    """
    cases: list[Case] = []
    taken = 0  # inputs of a first step, which end with the state
    for case in golden.cases:
        if not case.step:
            taken = len(case.inputs)
            cases.append(case)
            continue
        before = cases[-1].eager
        state = before[len(before) - (taken - len(case.inputs)) :] if taken > len(case.inputs) else ()
        cases.append(replace(case, inputs=(*case.inputs, *state)))
    return replace(golden, cases=tuple(cases))


def samples(golden: Golden) -> tuple[Case, ...]:
    """Return the cases that are the recipe's own samples, in order."""
    return tuple(case for case in golden.cases if case.record.sample is not None)


def noise(cases: Sequence[Case]) -> float | None:
    """Return the RMSE of eager against the reference over all floating and complex outputs; None if there are none."""
    total, count = 0.0, 0
    for case in cases:
        for e, r in zip(case.eager, case.reference, strict=True):
            if is_inexact(e):
                difference = in_float64(e) - r
                difference = torch.view_as_real(difference) if difference.is_complex() else difference
                difference = difference.nan_to_num(0.0, 0.0, 0.0)
                total += float(difference.square().sum())
                count += difference.numel()
    return math.sqrt(total / count) if count else None


def save(golden: Golden, path: Path) -> None:
    """Write a golden as safetensors with JSON metadata (docs/formats.md)."""
    stored: dict[str, torch.Tensor] = {}

    def put(prefix: str, tensors: Tensors) -> int:
        stored.update({f"{prefix}.{index}": tensor for index, tensor in enumerate(tensors)})
        return len(tensors)

    about: dict[str, Any] = {
        "schema": SCHEMA,
        "tolerance": _plain_tolerance(golden.tolerance),
        "cases": [
            {
                **{name: value for name, value in asdict(case.record).items() if value is not None},
                **{kind: put(f"cases.{number}.{kind}", getattr(case, kind)) for kind in KINDS},
            }
            for number, case in enumerate(golden.cases)
        ],
        "precisions": {
            name: {
                "tolerance": _plain_tolerance(own.tolerance),
                "eager": [put(f"precisions.{name}.{number}", eager) for number, eager in enumerate(own.eager)],
                "without": list(own.without),
                **_put_stored(name, own, put),
            }
            for name, own in golden.precisions.items()
        },
    }
    if golden.tolerances:
        about["tolerances"] = {dtype: _plain_tolerance(own) for dtype, own in golden.tolerances.items()}
    if golden.nonfinite is not None:
        about["nonfinite"] = [
            {
                "inputs": list(one.inputs),
                "names": list(one.names),
                "value": one.value,
                "expected": put(f"nonfinite.{number}", one.expected),
            }
            for number, one in enumerate(golden.nonfinite)
        ]
    tensor_files.save(stored, path, about)


def _put_stored(name: str, own: Precision, put: Callable[[str, Tensors], int]) -> dict[str, list[int]]:
    if not own.stored:
        return {}
    return {"stored": [put(f"precisions.{name}.stored.{number}", one) for number, one in enumerate(own.stored)]}


def _plain_tolerance(tolerance: Tolerance) -> dict[str, float]:
    return {name: value for name, value in asdict(tolerance).items() if value is not None}


def read(path: Path) -> Golden:
    """Read a golden of any known schema. Raises ArtifactError if it is missing, broken or of an unknown schema."""
    try:
        data = _unpickled(path) if _is_archive(path) else _gathered(*tensor_files.read(path))
        cases = tuple(
            Case(_record(c), tuple(c["inputs"]), tuple(c["eager"]), tuple(c["reference"])) for c in data["cases"]
        )
        others = {
            name: Precision(
                Tolerance(**p["tolerance"]),
                tuple(map(tuple, p["eager"])),
                tuple(p["without"]),
                tuple(map(tuple, p.get("stored", ()))),
            )
            for name, p in data.get("precisions", {}).items()
        }
        spoilt = data.get("nonfinite")
        nonfinite = None if spoilt is None else tuple(map(_nonfinite, spoilt))
        tolerances = {dtype: Tolerance(**own) for dtype, own in data.get("tolerances", {}).items()}
        return Golden(cases, Tolerance(**data["tolerance"]), others, nonfinite, tolerances)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}", error.remedy) from error
    except Exception as error:  # a broken file can raise anything
        raise ArtifactError(f"{path} cannot be read as a golden: {error}", "export again") from error


def _gathered(stored: Mapping[str, torch.Tensor], about: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata with the tensors in place of their counts."""
    _require(about, (SCHEMA,))

    def take(prefix: str, count: int) -> list[torch.Tensor]:
        return [stored[f"{prefix}.{index}"] for index in range(count)]

    for number, case in enumerate(about["cases"]):
        case.update({kind: take(f"cases.{number}.{kind}", case[kind]) for kind in KINDS})
    for name, own in about.get("precisions", {}).items():
        own["eager"] = [take(f"precisions.{name}.{number}", count) for number, count in enumerate(own["eager"])]
        if "stored" in own:
            counts = enumerate(own["stored"])
            own["stored"] = [take(f"precisions.{name}.stored.{number}", count) for number, count in counts]
    for number, one in enumerate(about.get("nonfinite", ())):
        one["expected"] = take(f"nonfinite.{number}", one["expected"])
    return about


def _is_archive(path: Path) -> bool:
    """Return whether torch.save wrote the file; a safetensors file starts like this only if its header has 67 MB."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def _unpickled(path: Path) -> dict[str, Any]:
    """Return the data of a golden of schema 1 or 2, written by torch.save: the same tree, including the tensors."""
    data: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    _require(data, PICKLED)
    return data


def _require(data: Mapping[str, Any], schemas: tuple[int, ...]) -> None:
    if data["schema"] not in schemas:
        known = " and ".join(map(str, schemas))
        raise ArtifactError(
            f"schema {data['schema']} is not known, only {known}", "use the exporter release that wrote it"
        )


def _record(case: Mapping[str, Any]) -> CaseRecord:
    known = {field.name: case[field.name] for field in fields(CaseRecord) if field.name in case}
    return CaseRecord(**known) if "sizes" in known else replace(CaseRecord.of_text(case["name"]), **known)


def _nonfinite(one: Mapping[str, Any]) -> NonFinite:
    return NonFinite(tuple(one["inputs"]), tuple(one["names"]), one["value"], tuple(one["expected"]))
