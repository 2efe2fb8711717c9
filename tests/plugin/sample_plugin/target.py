"""A sample of a target: the exported program, run op by op."""

from __future__ import annotations

import io
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
native = False
needs_program = True
also_called = ("specimen",)
libraries = ("sample_runtime",)
portability = 0
question = "the sample: what does it say?"
read_contract = contract_files.read_zip


def export(program: Program, path: Path, options: Options) -> Exported:
    """Save the exported program with its contract."""
    import torch

    file = io.BytesIO()
    torch.export.save(program.artifact, file, extra_files={"contract.json": to_json(program.contract)})
    path.write_bytes(file.getvalue())
    return Exported(notes=("by the sample plug-in",))


def load(path: Path, options: Options) -> Loaded:
    """The program's graph."""
    import torch

    module = torch.export.load(io.BytesIO(path.read_bytes())).module()

    def run(inputs: Tensors) -> Tensors:
        with torch.no_grad():
            return tuple(module(*inputs))

    return Loaded(run)


def explain(subject: Any) -> list[Any]:
    """What exporter explain says of a model."""
    from exporter.workers.explain import Finding

    return [Finding("ok", f"it takes {len(subject.contract.inputs)} input")]


def examine(probed: str) -> tuple[Part, ...]:
    """What exporter doctor says of it."""
    return (Part("ok", "sample runtime", "needs nothing else"),)
