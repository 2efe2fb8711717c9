"""Goldens: inputs with the outputs that eager gives, in its own precision and in float64; in memory and in a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from exporter.core.errors import ArtifactError
from exporter.core.records import FP32, CaseRecord, Tolerance
from exporter.model.tensors import Tensors

SCHEMA = 2  # with sequences; 1 is without, and written where there are none


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
    torch.save(
        {
            "schema": SCHEMA if any(case.step is not None for case in golden.cases) else 1,
            "tolerance": _plain_tolerance(golden.tolerance),
            "cases": [
                {
                    **{name: value for name, value in asdict(c.record).items() if value is not None},
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
            **({} if golden.nonfinite is None else {"nonfinite": list(map(_plain_nonfinite, golden.nonfinite))}),
        },
        path,
    )


def _plain_tolerance(tolerance: Tolerance) -> dict[str, float]:
    return {name: value for name, value in asdict(tolerance).items() if value is not None}


def _plain_nonfinite(one: NonFinite) -> dict[str, Any]:
    return {
        "inputs": list(one.inputs),
        "names": list(one.names),
        "value": one.value,
        "expected": _plain(one.expected),
    }


def _plain(tensors: Tensors) -> list[torch.Tensor]:
    """Copies of the values themselves: a view would carry its whole storage along, and C++ reads no lazy bits."""
    return [t.resolve_conj().resolve_neg().contiguous().clone() for t in tensors]


def read(path: Path) -> Golden:
    """Read a golden; ArtifactError when it is missing, broken or of another schema."""
    try:
        data: Any = torch.load(path, weights_only=True, map_location="cpu")
        if data["schema"] not in (1, SCHEMA):
            raise ArtifactError(
                f"{path}: schema {data['schema']} is not known, only 1 and {SCHEMA}",
                "use the exporter release that wrote it",
            )
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
    except ArtifactError:
        raise
    except Exception as error:  # whatever a broken pickle raises
        raise ArtifactError(f"{path} cannot be read as a golden: {error}", "export again") from error


def _record(case: Mapping[str, Any]) -> CaseRecord:
    known = {field.name: case[field.name] for field in fields(CaseRecord) if field.name in case}
    return CaseRecord(**known) if "sizes" in known else replace(CaseRecord.of_text(case["name"]), **known)


def _nonfinite(one: Mapping[str, Any]) -> NonFinite:
    return NonFinite(tuple(one["inputs"]), tuple(one["names"]), one["value"], tuple(one["expected"]))
