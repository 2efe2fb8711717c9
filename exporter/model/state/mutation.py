"""Finding tensors that an exported program holds and writes to: state, known or unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from exporter.core import source_lines
from exporter.core.errors import ExportError
from exporter.model import recurrent
from exporter.model.state import carrying
from exporter.model.writes import aliased

_CONSTANT = re.compile(r"Constant (\S+) is mutated")


def require_known(program: torch.export.ExportedProgram) -> None:
    """Raise ExportError if a program changes a tensor of the model that is not known as state."""
    found = dict(_written(program))
    if not found:
        return
    names = [name for name in _mutated(program) if not name.rpartition(".")[2].startswith(carrying.BUFFER)]
    if names:
        name = re.sub(r"^(function\.)?model\.", "", names[0])
        place = next((line for target, line in found.items() if target == names[0]), "")
        raise ExportError(
            f"the exported program changes {name}{f' ({place})' if place else ''}, but no call in the search "
            "for state did: it may change only at other sizes than the example's",
            "let each call change it, or promise only sizes at which none does: --size NAME=MIN..MAX",
        )


def _mutated(program: torch.export.ExportedProgram) -> list[str]:
    """Return the names of changed tensors according to torch; the program's symbols are not affected."""
    try:
        with recurrent.kept():
            signature = program.run_decompositions({}).graph_signature
    except RuntimeError as error:
        if constant := _CONSTANT.search(str(error)):
            return [constant[1]]
        raise
    return [*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()]


def _written(program: torch.export.ExportedProgram) -> Iterator[tuple[str, str]]:
    """Yield tensors of the program that an operator may write to, each with the line of the code.

    The result may include false positives: operators like `to` return the tensor itself or a copy.
    """
    held = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind in (InputKind.BUFFER, InputKind.PARAMETER, InputKind.CONSTANT_TENSOR) and spec.target
    }
    roots: dict[fx.Node, str] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in held:
            roots[node] = held[node.name]
        for argument, writes in aliased(node):
            if argument in roots:
                roots[node] = roots[argument]
                if writes:
                    yield roots[argument], source_lines.place(node.meta.get("stack_trace") or "")
