"""Goldens (docs/formats.md, schema 3) as plain dicts, read and written without exporter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file

KINDS = ("inputs", "eager", "reference")


def save(golden: dict[str, Any], path: Path) -> None:
    """Write a golden: `cases` with lists of tensors, and `precisions` with one list per case."""
    tensors: dict[str, torch.Tensor] = {}

    def put(prefix: str, given: list[torch.Tensor]) -> int:
        tensors.update({f"{prefix}.{index}": tensor.contiguous().clone() for index, tensor in enumerate(given)})
        return len(given)

    cases = [
        {**case, **{kind: put(f"cases.{number}.{kind}", case[kind]) for kind in KINDS}}
        for number, case in enumerate(golden["cases"])
    ]
    precisions = {
        name: {
            **own,
            "eager": [put(f"precisions.{name}.{number}", given) for number, given in enumerate(own["eager"])],
            **(
                {"stored": [put(f"precisions.{name}.stored.{n}", given) for n, given in enumerate(own["stored"])]}
                if "stored" in own
                else {}
            ),
        }
        for name, own in golden.get("precisions", {}).items()
    }
    pairs = [name for name, tensor in tensors.items() if tensor.dtype == torch.complex128]
    tensors.update({name: torch.view_as_real(tensors[name]) for name in pairs})
    about = {**golden, "schema": 3, "cases": cases, "precisions": precisions, "complex": pairs}
    save_file(tensors, path, {"exporter": json.dumps(about)})


def load(path: Path) -> dict[str, Any]:
    """Read a golden that `save` wrote. Complex tensors are not supported."""
    with safetensors.safe_open(path, "pt") as file:
        golden: dict[str, Any] = json.loads(file.metadata()["exporter"])
    tensors = load_file(path)

    def take(prefix: str, count: int) -> list[torch.Tensor]:
        return [tensors[f"{prefix}.{index}"] for index in range(count)]

    for number, case in enumerate(golden["cases"]):
        case.update({kind: take(f"cases.{number}.{kind}", case[kind]) for kind in KINDS})
    for name, own in golden["precisions"].items():
        own["eager"] = [take(f"precisions.{name}.{number}", count) for number, count in enumerate(own["eager"])]
        if "stored" in own:
            counts = enumerate(own["stored"])
            own["stored"] = [take(f"precisions.{name}.stored.{number}", count) for number, count in counts]
    return golden
