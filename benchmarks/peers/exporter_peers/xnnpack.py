"""XNNPACK, as ExecuTorch uses it: the exported program lowered to a .pte file, in float32 or quantized to int8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exporter.core import contract_files
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import to_json
from exporter.targets import Exported, Loaded, Options

if TYPE_CHECKING:
    import torch

    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

artifact = "xnnpack.pte"
variants = ("",)
precisions = ("fp32", "int8")
requires = ("executorch", "torchao")
native = False
needs_program = True
assumes = ("graph",)
cost = 5
companions = (".json",)
libraries = ("executorch", "torchao")


def export(program: Program, path: Path, options: Options) -> Exported:
    """Lower the exported program; its contract goes into a companion file, because a .pte file has no room for it."""
    from executorch.backends.xnnpack.partition import xnnpack_partitioner as partition
    from executorch.exir import to_edge_transform_and_lower

    graph, dynamic = program.exported, False
    partitioners: list[partition.XnnpackPartitioner] = [partition.XnnpackPartitioner()]
    if options.precision == "int8":
        dynamic = not any("conv" in str(node.target) for node in graph.graph.nodes)
        graph = program.capture(_quantized(graph, program, dynamic))
        if dynamic:
            partitioners.insert(0, partition.XnnpackDynamicallyQuantizedPartitioner())
    path.write_bytes(to_edge_transform_and_lower(graph, partitioner=partitioners).to_executorch().buffer)
    _contract(path).write_text(to_json(program.contract))
    note = "activation ranges computed at each call" if dynamic else program.calibration
    return Exported((note,) if options.precision == "int8" else (), companions=(_contract(path).name,))


def _quantized(graph: torch.export.ExportedProgram, program: Program, dynamic: bool) -> torch.nn.Module:
    """Quantize with the symmetric configuration: dynamically, or statically if there are convolutions."""
    import torch
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = xnnpack.XNNPACKQuantizer()
    quantizer.set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic))
    if dynamic:  # it would turn integers in arithmetic on sizes into float32; it serves operators other than linear
        quantizer.transform_for_annotation = lambda graph: graph
    prepared = prepare_pt2e(graph.module(check_guards=False), quantizer)
    with torch.no_grad():
        for inputs in program.samples:
            prepared(*inputs)
    converted = convert_pt2e(prepared)

    class Flat(torch.nn.Module):
        """Takes tensors one by one, as torch.export needs it to relate them to the contract."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = converted

        def forward(self, *tensors: torch.Tensor) -> Tensors:
            return tuple(self.inner(*tensors))

    return Flat()


def load(path: Path, options: Options) -> Loaded:
    """Load the program into ExecuTorch's runtime, with as many threads as torch has."""
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    portable_lib._unsafe_reset_threadpool(options.threads)
    try:
        method = Runtime.get().load_program(path).load_method("forward")
    except RuntimeError as error:
        raise ArtifactError(f"ExecuTorch cannot load {path}: {error}") from error
    if method is None:
        raise ArtifactError(f"{path} has no method forward", "export it again")

    def run(inputs: Tensors) -> Tensors:
        return tuple(method.execute(list(inputs)))

    return Loaded(run, lambda: "XNNPACK", takes=method.metadata.num_inputs())


def read_contract(path: Path) -> Contract:
    """Return the contract in the companion file. Raise ArtifactError if it cannot be read."""
    try:
        return contract_files.parse(_contract(path).read_text(), path)
    except OSError as error:
        raise ArtifactError(f"{path} carries no contract: {error}", "export it with exporter") from error


def _contract(path: Path) -> Path:
    return path.with_name(path.name + ".json")
