"""`torch.jit.script`: natively where it works, else from the exported graph."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter import contract, operators, torchscript
from exporter.errors import ExportError
from exporter.records import to_json
from exporter.targets import Exported, Loaded, Options

if TYPE_CHECKING:
    import torch

    from exporter.capture import Program

artifact = "script.pt"
variants = ("",)
requires = ("torch",)
native = True
needs_program = True
cost = 2
read_contract = contract.read_zip


def export(program: Program, path: Path, options: Options) -> Exported:
    """Script the module; where TorchScript cannot read its source, script the exported graph instead."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            scripted, way = _native(program), "scripted natively"
        except Exception as error:  # the compiler of TorchScript raises whatever it meets
            scripted, way = _bridged(program, error), f"through the exported graph; natively: {_first_line(error)}"
        frozen = torch.jit.freeze(scripted.eval())
        ops = operators.of_script(frozen)
        promise = to_json(replace(program.contract, ops=ops))
        torch.jit.save(frozen, str(path), _extra_files={"contract.json": promise})
    return Exported(notes=(way,), ops=ops)


def _native(program: Program) -> torch.jit.ScriptModule:
    """The model scripted, in a shell that takes and gives the contract's tensors.

    Only for models that take each tensor as an argument of its own and give a tensor or a tuple of tensors.
    """
    import torch
    from torch import fx

    names = [spec.name for spec in program.contract.inputs]
    flat: Any = program.module
    if len(flat.example.leaves) != len(names):
        raise ExportError("some inputs are nested or constants")
    scripted = torch.jit.script(flat.model)
    graph = fx.Graph()
    given: dict[str, Any] = {name: graph.placeholder(name) for name in names}
    answer = graph.call_module("model", kwargs=given)
    graph.output(_as_tuple(answer, str(scripted.forward.schema.returns[0].type), len(program.contract.outputs)))
    shell: torch.jit.ScriptModule = torch.jit.script(fx.GraphModule({"model": scripted}, graph))
    shell(*program.example)
    return shell


def _as_tuple(answer: Any, returns: str, outputs: int) -> tuple[Any, ...]:
    if returns == "Tensor":
        return (answer,)
    if returns == f"({', '.join(['Tensor'] * outputs)})":
        return tuple(answer[i] for i in range(outputs))
    raise ExportError(f"the scripted model returns {returns}")


def _bridged(program: Program, why: Exception) -> torch.jit.ScriptModule:
    try:
        return torchscript.from_exported(program.exported)
    except ExportError as error:
        raise ExportError(f"{error}; torch.jit.script: {_first_line(why)}", error.remedy) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r" at 0x[0-9a-f]+", "", lines[0])[:200] if lines else type(error).__name__


def load(path: Path, options: Options) -> Loaded:
    """torch.jit.load, as any user would."""
    return Loaded(torchscript.load(path, options.device))
