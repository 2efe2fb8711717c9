"""A sample of a target: a trace, which exporter-run can load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import contract_files
from exporter.core.json_codec import to_json
from exporter.targets import Exported, Loaded, Options, Part

if TYPE_CHECKING:
    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

artifact = "sample.pt"
variants = ("",)
precisions = ("fp32",)
requires = ("sample-runtime",)
native = True
needs_program = True
also_called = ("specimen",)
libraries = ("sample_runtime",)
portability = 0
question = "sample: can it be saved?"
read_contract = contract_files.read_zip


def warm_up(options: Options) -> None:
    """Leave a file, and fail, which must not matter."""
    if place := os.environ.get("WARMED"):
        Path(place).touch()
    raise RuntimeError("there is nothing to warm up")


def export(program: Program, path: Path, options: Options) -> Exported:
    """Save a trace of the module, with the contract inside."""
    import torch

    with torch.no_grad():
        traced = torch.jit.trace(program.module, program.example)
    torch.jit.save(traced, path, _extra_files={"contract.json": to_json(program.contract)})
    return Exported(notes=("by the sample plug-in",))


def load(path: Path, options: Options) -> Loaded:
    """Load the trace."""
    import torch

    module = torch.jit.load(path)

    def run(inputs: Tensors) -> Tensors:
        with torch.no_grad():
            outputs: Tensors = module(*inputs)
            return outputs

    return Loaded(run)


def explain(subject: Any) -> list[Any]:
    """Return the findings of `exporter explain`."""
    from exporter.workers.explain import Finding

    return [Finding("ok", f"it takes {len(subject.contract.inputs)} input")]


def examine(probed: str) -> tuple[Part, ...]:
    """Return what `exporter doctor` reports."""
    return (Part("ok", "sample runtime", "needs nothing else"),)
