"""The bridge: converts an exported program to TorchScript with dynamic shapes.

Guards and assertions are omitted because the contract replaces them. Parameters, buffers and constants keep their
names; buffers that the model changes are changed here too, and persist between calls.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from exporter.core.errors import Blame, ExportError
from exporter.model import recurrent
from exporter.model.torchscript.codegen import arguments, attribute, define, literal, number_tensor
from exporter.model.torchscript.lowering import Lowering, Value, python_type, source_line

REMEDY = "rewrite it so that torch.jit.script accepts the model, or use a target that supports it: compile, onnx"
ROUND = "builtins.round"  # to digits; without them, TorchScript has it
STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
MUTATED = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")


def from_exported(program: torch.export.ExportedProgram, names: Sequence[str] = ()) -> torch.jit.ScriptModule:
    """Return a script module that takes the program's tensors in order and returns a tuple of its output tensors.

    Its arguments have these names, as far as identifiers allow, or by default the program's. Numbers in the outputs
    become tensors and None is omitted; inputs that are not tensors become constants. Raises ExportError, which names
    every operator that TorchScript lacks and the model's source line that led to it.
    """
    program = _without_autocast(program)
    lowering = Lowering(_device(program))
    module = torch.nn.Module()
    parameters, values = _inputs(program, lowering, module, map(lowering.reserve, arguments(names)))
    results = lowering.inline(program.graph_module, values)
    returned = _outputs(program, lowering, results)
    for name, tensor in lowering.constants.items():
        _place(module, name, tensor, {})
    if lowering.missing:
        missing = (f"{what} ({where})" if where else what for what, where in lowering.missing)
        blame = _blame(next(what for what, _ in lowering.missing))
        remedy = "" if {what for what, _ in lowering.missing} == {ROUND} else REMEDY  # the cause has its own
        raise ExportError(f"TorchScript has no {', '.join(missing)}", remedy, blame)
    head = f"def forward(self, {', '.join(parameters)}) -> Tuple[{', '.join(['Tensor'] * len(returned))}]:"
    tail = f"    return ({''.join(f'{name}, ' for name in returned)})"
    try:
        return define(module, "\n".join([head, *lowering.lines, tail, "", *lowering.methods.values()]))
    except RuntimeError as error:
        raise _not_taken(error, lowering) from error


def _blame(missing: str) -> Blame:
    """Return the known cause for an operator that TorchScript lacks."""
    if missing.startswith("torch._functorch"):
        return Blame("vmap")
    if missing == ROUND:
        return Blame("rounded-to-digits")
    if missing.startswith("higher_order."):
        return Blame("higher-order-operator", {"op": missing.removeprefix("higher_order.")})
    return Blame("operator-not-in-torchscript", {"op": missing})


def _inputs(
    program: torch.export.ExportedProgram, lowering: Lowering, module: torch.nn.Module, names: Iterator[str]
) -> tuple[list[str], list[Value]]:
    """Return forward's parameters and the values of all placeholders; put the program's tensors on `module`."""
    parameters: list[str] = []
    values: list[Value] = []
    copies: dict[int, torch.Tensor] = {}
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            values.append(_user_input(node, lowering, parameters, names))
        elif spec.kind in STATE and spec.target is not None:
            tensor = program.state_dict.get(spec.target)
            tensor = program.constants[spec.target] if tensor is None else tensor
            _place(module, spec.target, tensor, copies)
            values.append(attribute(spec.target))
        else:
            values.append(lowering.refused(f"{spec.kind.name} {spec.target}", node))
    return parameters, values


def _user_input(node: fx.Node, lowering: Lowering, parameters: list[str], names: Iterator[str]) -> Value:
    value = node.meta.get("val")
    kinds = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
    kind = "Tensor" if isinstance(value, torch.Tensor) else kinds.get(type(value))
    if kind is None:
        return literal(value, torch._C.AnyType.get())
    name = next(names, None) or lowering.name(node.name)
    parameters.append(f"{name}: {kind}")
    if kind == "Tensor" and len([p for p in parameters if p.endswith("Tensor")]) == 1:
        lowering.say(f"device = {name}.device")
    return name


def _place(module: torch.nn.Module, name: str, tensor: torch.Tensor, copies: dict[int, torch.Tensor]) -> None:
    """Put a tensor on the module under its dotted name. Buffers are copied, once if shared."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            setattr(module, part, torch.nn.Module())
        module = module.get_submodule(part)
    if isinstance(tensor, torch.nn.Parameter):
        setattr(module, leaf, torch.nn.Parameter(tensor.detach(), requires_grad=False))
    else:
        module.register_buffer(leaf, copies.setdefault(id(tensor), tensor.detach().clone()))


def _outputs(program: torch.export.ExportedProgram, lowering: Lowering, results: Sequence[Value]) -> list[str]:
    """Return the names of the output tensors, after copying a functional graph's results into mutated tensors."""
    (nodes,) = program.graph.output_node().args
    returned: list[str] = []
    targets = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for node, spec, result in zip(nodes, program.graph_signature.output_specs, results, strict=True):
        if spec.kind.name in MUTATED:
            source = spec.target if spec.kind is OutputKind.USER_INPUT_MUTATION else targets[spec.target]
            lowering.say(f"torch.ops.aten.copy_({lowering.value(placeholders[source])}, {result})")
        elif isinstance(node.meta.get("val") if isinstance(node, fx.Node) else node, torch.Tensor):
            returned.append(result)
        elif (kind := python_type(node)) is not None:
            returned.append(number_tensor(result, kind))
    return returned


def _device(program: torch.export.ExportedProgram) -> torch.device | None:
    """Return the device of the first input tensor at export."""
    names = program.graph_signature.user_inputs
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names and isinstance(node.meta.get("val"), torch.Tensor):
            device: torch.device = node.meta["val"].device
            return device
    return None


def _without_autocast(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Write out the casts of autocast regions, if there are any."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if "wrap_with_autocast" in str(node.target) and node.args[2]:
                with warnings.catch_warnings(), recurrent.kept():
                    warnings.simplefilter("ignore", FutureWarning)  # torch's own, addressed to torch
                    expanded: torch.export.ExportedProgram = program.run_decompositions({})
                return expanded
    return program


def _not_taken(error: RuntimeError, lowering: Lowering) -> ExportError:
    """Return the compiler's error with the operator and the model's source line instead of a line of generated code."""
    said = " ".join(line.strip() for line in str(error).splitlines()[:12] if line.strip())[:300]
    line = re.search(r'File "<string>", line (\d+)', str(error))
    node: Any = lowering.origins[int(line[1]) - 2] if line and 0 <= int(line[1]) - 2 < len(lowering.origins) else None
    if node is None:
        return ExportError(f"TorchScript cannot take the exported graph: {said}", REMEDY)
    where = source_line(node)
    return ExportError(f"TorchScript cannot take {node.target}{f' ({where})' if where else ''}: {said}", REMEDY)
