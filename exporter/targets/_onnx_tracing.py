"""ONNX by torch's older exporter, which translates a trace; used if the newer one fails.

A trace records what Python did with the values of the example. If torch.export captures the model, no branch depends on
values, and the exported program shows whether a number is read from a tensor. If it does not capture the model, or a
number is read, the trace is trusted for other values only if the tracer gave no warning.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from exporter.core import contract, source_lines
from exporter.core.errors import ExportError
from exporter.model.torchscript import codegen

if TYPE_CHECKING:
    from exporter.core.contract_records import TensorSpec
    from exporter.core.parity_records import Warned
    from exporter.model.capture import Program


def export(program: Program, opset: int | None, captured: bool) -> tuple[torch.onnx.ONNXProgram, tuple[Warned, ...]]:
    """Return the ONNX program, with the dynamic dimensions of the contract, and the tracer's warnings.

    `captured` is whether torch.export captured the model and no number is read from a tensor. Raise ExportError if the
    exporter fails, if the inputs or outputs are not those of the contract, or if the trace may depend on values.
    """
    import onnx
    import onnx_ir

    promised = program.contract
    names = [spec.name for spec in promised.inputs], contract.output_names(promised)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        warned = _translate(program, path, names, opset)
        if warned and not captured:
            raise ExportError(f"the trace depends on values: {warned[0]}")
        model = onnx.load(str(path))
    found = [[value.name for value in values] for values in (model.graph.input, model.graph.output)]
    if found != [*names]:
        raise ExportError(f"the trace takes {', '.join(found[0])} and returns {', '.join(found[1])}")
    return torch.onnx.ONNXProgram(onnx_ir.from_proto(model), None), warned


def takes_numbers(exported: torch.export.ExportedProgram) -> bool:
    """Return whether the program reads a number from a tensor; a trace would keep the example's number."""
    graphs = (module.graph for module in exported.graph_module.modules() if isinstance(module, torch.fx.GraphModule))
    return any(
        "_local_scalar_dense" in str(node.target) or "aten.item" in str(node.target) for g in graphs for node in g.nodes
    )


def _translate(
    program: Program, path: Path, names: tuple[list[str], list[str]], opset: int | None
) -> tuple[Warned, ...]:
    from exporter.model import mixed_dtypes, padded_encoders

    promised = program.contract
    agreeing = mixed_dtypes.agreeing(program.module, program.example)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad(), agreeing, padded_encoders.zeroed():
        warnings.simplefilter("always")
        try:
            torch.onnx.export(
                _traceable(program),
                program.example,
                str(path),
                dynamo=False,
                opset_version=opset,
                input_names=names[0],
                output_names=names[1],
                dynamic_axes={
                    name: _axes(spec)
                    for name, spec in zip([*names[0], *names[1]], (*promised.inputs, *promised.outputs), strict=True)
                },
            )
        except Exception as error:  # tracing and translation may raise anything
            raise ExportError(source_lines.named(error)) from error
    return codegen.tracer_warnings(caught)


def _traceable(program: Program) -> torch.nn.Module:
    """Return the module, or its trace if it contains TorchScript, which the exporter's own tracing does not enter."""
    if not any(isinstance(inner, torch.jit.ScriptModule) for inner in program.module.modules()):
        return program.module
    traced: torch.nn.Module = torch.jit.trace(program.module, program.example, strict=False, check_trace=False)
    return traced


def _axes(spec: TensorSpec) -> dict[int, str]:
    """Return the names of the dynamic dimensions; one that no symbol determines is named after its axis."""
    named: dict[int, Any] = {axis: dim for axis, dim in enumerate(spec.shape) if not isinstance(dim, int)}
    return {axis: dim or f"{spec.name}.{axis}" for axis, dim in named.items()}
