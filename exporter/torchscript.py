"""TorchScript: loading it, and making it from an exported program."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.errors import ArtifactError, ExportError

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, ...]


def load(path: Path, device: str) -> Callable[[Tensors], Tensors]:
    """A loaded `.pt` as a function of tensors. ArtifactError when the file is not one."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            module = torch.jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(f"{path} is not TorchScript: {error}", "export it again") from error
    module.eval()

    def run(inputs: Tensors) -> Tensors:
        with torch.no_grad():
            output = module(*inputs)
        return output if isinstance(output, tuple) else tuple(output) if isinstance(output, list) else (output,)

    return run


def tracer_warnings(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    """TracerWarnings with their source lines, each once. They prove nothing by themselves; the golden does."""
    from torch.jit._trace import TracerWarning

    seen = dict.fromkeys(
        f"{w.filename}:{w.lineno}: {str(w.message).split('.')[0]}"
        for w in caught
        if issubclass(w.category, TracerWarning)
    )
    return tuple(seen)


def from_exported(program: torch.export.ExportedProgram) -> torch.jit.ScriptModule:
    """The bridge: an exported program as TorchScript, with its shapes still dynamic.

    Guards and assertions are erased, for TorchScript has no words for them: the contract stands in for them.
    ExportError names the first operator that TorchScript cannot take.
    """
    import torch
    from torch import fx

    module = program.module()
    graph = module.graph
    for node in reversed(graph.nodes):
        if _is_assertion(node):
            graph.erase_node(node)
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = node.target.overloadpacket
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            raise ExportError(
                f"TorchScript has no {node.target.name()}", "write the branch so that torch.jit.script takes it"
            )
    _drop_unused_symbols(graph)
    graph.set_codegen(fx.graph.CodeGen())
    plain = fx.GraphModule(module, graph)
    try:
        scripted: torch.jit.ScriptModule = torch.jit.script(plain)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ExportError(f"TorchScript cannot take the exported graph: {' '.join(lines[:2])}") from error
    return scripted


def _is_assertion(node: Any) -> bool:
    name = str(node.target)
    if node.op == "call_module":
        return name.startswith("_guards")
    words = ("_assert", "sym_constrain_range", "_check")
    return node.op == "call_function" and not node.users and any(word in name for word in words)


def _drop_unused_symbols(graph: Any) -> None:
    """What only fed an assertion is of no more use."""
    for node in reversed(graph.nodes):
        symbolic = node.target in (
            operator.ge,
            operator.le,
            operator.eq,
            operator.gt,
            operator.lt,
        ) or "sym_size" in str(node.target)
        if node.op == "call_function" and symbolic and not node.users:
            graph.erase_node(node)
