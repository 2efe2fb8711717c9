"""Goldens: inputs with the outputs that eager gives, in its own precision and in float64; in memory and in a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from exporter.core.contract_records import FP32
from exporter.core.errors import ArtifactError
from exporter.core.parity_records import CaseRecord, Tolerance
from exporter.model import tensor_files
from exporter.model.tensors import Tensors

SCHEMA = 3  # that is written
PICKLED = (1, 2)  # schemas that torch.save wrote, which are read: without sequences, and with them
KINDS = ("inputs", "eager", "reference")


@dataclass(frozen=True)
class Case:
    """One case: CPU tensors in the contract's order.

    Of a model with state it is a call of a sequence: `step` 0 begins one from the initial state, which is among its
    inputs where the contract keeps it outside; a later one follows the case before it.
    """

    record: CaseRecord
    inputs: Tensors
    eager: Tensors
    reference: Tensors

    @property
    def name(self) -> str:
        """What it is called."""
        return self.record.name

    @property
    def step(self) -> int | None:
        """As in its record."""
        return self.record.step


@dataclass(frozen=True)
class NonFinite:
    """The example with `value`, NaN or infinity, in the middle element of each of these `inputs`, which have `names`.

    `expected` has, for each output, where that reaches it: codes of `nonfinite`, or one where all are alike.
    """

    inputs: tuple[int, ...]
    names: tuple[str, ...]
    value: str
    expected: Tensors


@dataclass(frozen=True)
class Golden:
    """Cases with the tolerance that was fixed for them. The first case is the example.

    `precisions` hold what else a golden is judged by where an artifact computes in another precision. `nonfinite` is
    what has to be propagated, in any; None where eager was not asked.
    """

    cases: tuple[Case, ...]
    tolerance: Tolerance
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    nonfinite: tuple[NonFinite, ...] | None = None

    def of(self, precision: str) -> Golden:
        """The golden for artifacts of one precision. ArtifactError when it was made without."""
        if precision == FP32:
            return self
        if precision not in self.precisions:
            raise ArtifactError(f"the golden was made without {precision}", "export again")
        found = self.precisions[precision]
        eager = found.eager or [case.eager for case in self.cases]
        cases = [replace(c, eager=e) for c, e in zip(self.cases, eager, strict=True)]
        return Golden(tuple(_without(cases, found.without)), found.tolerance, nonfinite=self.nonfinite)


@dataclass(frozen=True)
class Precision:
    """The tolerance of a precision, and what eager gives in it for each case; nothing where that is float32's.

    `without` names cases that it is not judged by.
    """

    tolerance: Tolerance
    eager: tuple[Tensors, ...] = ()
    without: tuple[str, ...] = ()


def _without(cases: Sequence[Case], names: Collection[str]) -> Iterator[Case]:
    """The cases that are not named; of a sequence, those before the first that is."""
    whole = True
    for case in cases:
        whole = case.name not in names and (whole or not case.step)
        if whole:
            yield case


def samples(golden: Golden) -> tuple[Case, ...]:
    """The cases that are the recipe's own samples, in their order."""
    return tuple(case for case in golden.cases if case.record.sample is not None)


def save(golden: Golden, path: Path) -> None:
    """Write a golden (docs/formats.md)."""
    stored: dict[str, torch.Tensor] = {}

    def put(prefix: str, tensors: Tensors) -> int:
        stored.update({f"{prefix}.{index}": tensor for index, tensor in enumerate(tensors)})
        return len(tensors)

    about = {
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
            }
            for name, own in golden.precisions.items()
        },
    }
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


def _plain_tolerance(tolerance: Tolerance) -> dict[str, float]:
    return {name: value for name, value in asdict(tolerance).items() if value is not None}


def read(path: Path) -> Golden:
    """Read a golden, of any schema; ArtifactError when it is missing, broken or of another schema."""
    try:
        data = _unpickled(path) if _is_archive(path) else _gathered(*tensor_files.read(path))
        cases = tuple(
            Case(_record(c), tuple(c["inputs"]), tuple(c["eager"]), tuple(c["reference"])) for c in data["cases"]
        )
        precisions = {
            name: Precision(Tolerance(**p["tolerance"]), tuple(map(tuple, p["eager"])), tuple(p["without"]))
            for name, p in data.get("precisions", {}).items()
        }
        spoilt = data.get("nonfinite")
        nonfinite = None if spoilt is None else tuple(map(_nonfinite, spoilt))
        return Golden(cases, Tolerance(**data["tolerance"]), precisions, nonfinite)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}", error.remedy) from error
    except Exception as error:  # whatever a broken file raises
        raise ArtifactError(f"{path} cannot be read as a golden: {error}", "export again") from error


def _gathered(stored: Mapping[str, torch.Tensor], about: dict[str, Any]) -> dict[str, Any]:
    """What the metadata says, with the tensors in the place of their numbers."""
    _require(about, (SCHEMA,))

    def take(prefix: str, count: int) -> list[torch.Tensor]:
        return [stored[f"{prefix}.{index}"] for index in range(count)]

    for number, case in enumerate(about["cases"]):
        case.update({kind: take(f"cases.{number}.{kind}", case[kind]) for kind in KINDS})
    for name, own in about.get("precisions", {}).items():
        own["eager"] = [take(f"precisions.{name}.{number}", count) for number, count in enumerate(own["eager"])]
    for number, one in enumerate(about.get("nonfinite", ())):
        one["expected"] = take(f"nonfinite.{number}", one["expected"])
    return about


def _is_archive(path: Path) -> bool:
    """Whether torch.save wrote the file; one of safetensors would need a header of 67 MB to begin so."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def _unpickled(path: Path) -> dict[str, Any]:
    """A golden of schema 1 or 2, which torch.save wrote: the same tree, with the tensors in it."""
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
