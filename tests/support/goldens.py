"""Goldens in the format of earlier releases."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from exporter.core.parity_records import Tolerance
from exporter.evidence.golden import KINDS, Golden


def pickled(golden: Golden, path: Path) -> None:
    """Write a golden with torch.save as one tree, in schema 2 if a case is a step of a sequence, else in schema 1."""
    torch.save(
        {
            "schema": 2 if any(case.step is not None for case in golden.cases) else 1,
            "tolerance": _plain(golden.tolerance),
            "cases": [
                {
                    **{name: value for name, value in asdict(case.record).items() if value is not None},
                    **{kind: list(getattr(case, kind)) for kind in KINDS},
                }
                for case in golden.cases
            ],
            "precisions": {
                name: {
                    "tolerance": _plain(own.tolerance),
                    "eager": [list(eager) for eager in own.eager],
                    "without": list(own.without),
                }
                for name, own in golden.precisions.items()
            },
            **(
                {}
                if golden.nonfinite is None
                else {"nonfinite": [{**asdict(one), "expected": list(one.expected)} for one in golden.nonfinite]}
            ),
        },
        path,
    )


def _plain(tolerance: Tolerance) -> dict[str, Any]:
    return {name: value for name, value in asdict(tolerance).items() if value is not None}
