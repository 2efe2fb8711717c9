"""The ExportedProgram itself, saved by torch.export.

It moves between machines, CPUs and GPUs. exporter-run runs it without Python, and later compilers can start from it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.core import contract_files, source_lines
from exporter.core.errors import ArtifactError, ExportError
from exporter.core.json_codec import to_json
from exporter.core.precisions import SMALL_WEIGHTS
from exporter.core.profile_records import Steps
from exporter.model import custom_ops, steps
from exporter.model.state import carrying
from exporter.targets import GB, Exported, Loaded, Need, Options

if TYPE_CHECKING:
    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

artifact = "exported.pt2"
variants = ("",)
precisions = ("fp32", "tf32", "bf16", "fp16", *SMALL_WEIGHTS)
requires = ("torch",)
native = True
needs_program = True
assumes = ("graph", "guards")
cost = 1
question = "torch.export: which sizes stay dynamic"
portability = 0
nodes = True
export_need = Need(1.2, 0.6 * GB)
read_contract = contract_files.read_zip


def export(program: Program, path: Path, options: Options) -> Exported:
    """Save the exported program."""
    import torch

    from exporter.model import folding, guards, rounded_sizes

    if program.entries:
        raise ExportError("an exported program supports only one entry", "leave out --specialize or the target export")
    exported = folding.fold_batch_norms(program.artifact)
    if program.device != "cpu":
        exported = folding.merge_linears(exported)
    guards.drop_needless(exported, program.contract)
    rounded_sizes.make_storable(exported)
    ops = custom_ops.of_exported(exported)
    promise = to_json(replace(program.contract, ops=ops))
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if trace := node.meta.get("stack_trace"):
                node.meta["stack_trace"] = source_lines.portable(trace)
    torch.export.save(exported, path, extra_files={"contract.json": promise})
    return Exported(ops=ops)


def load(path: Path, options: Options) -> Loaded:
    """Load the program, which runs its graph operator by operator."""
    import torch

    from exporter.model import mapped_program, own_outputs

    try:
        exported = mapped_program.read(path)
        module = exported.module()
    except Exception as error:  # a broken archive raises many types of errors
        raise ArtifactError(f"{path} is not an exported program: {error}", "export it again") from error

    def run(inputs: Tensors) -> Tensors:
        with torch.no_grad():
            return tuple(module(*inputs))

    initial = {name: tensor.clone() for name, tensor in module.named_buffers() if name.startswith(carrying.BUFFER)}

    def reset() -> None:
        with torch.no_grad():
            for name, tensor in initial.items():
                module.get_buffer(name).copy_(tensor)

    def profile(inputs: Tensors, runs: int) -> Steps:
        """Time each node. `exporter profile` uses exporter-run instead if it is there."""
        return steps.of_nodes(module, inputs, options.device, runs)

    takes, own = len(exported.graph_signature.user_inputs), own_outputs.of_module(module)
    return Loaded(run, reset=reset, takes=takes, profile=profile, own=own)
