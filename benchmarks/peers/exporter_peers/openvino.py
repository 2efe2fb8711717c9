"""OpenVINO: the exported program converted to its own format; int8 by NNCF, bfloat16 by a hint when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from exporter.core import contract_files
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import to_json
from exporter.targets import Exported, Loaded, Options

if TYPE_CHECKING:
    import torch

    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

artifact = "openvino.xml"
variants = ("",)
precisions = ("fp32", "bf16", "int8")
requires = ("openvino", "nncf")
native = False
needs_program = True
assumes = ("graph",)
cost = 3
companions = (".bin",)
libraries = ("openvino", "nncf")
RECORD = "exporter_contract"
HINTS = {"fp32": {"INFERENCE_PRECISION_HINT": "f32"}, "bf16": {"INFERENCE_PRECISION_HINT": "bf16"}, "int8": {}}


def export(program: Program, path: Path, options: Options) -> Exported:
    """Convert the exported program; weights go into a companion file, in the precision that they have."""
    import openvino

    model = openvino.convert_model(_exported(program, options))
    for port, spec in zip(model.inputs, program.contract.inputs, strict=True):
        port.get_tensor().set_names({spec.name})
    if options.precision == "int8":
        model = _quantized(model, program)
    model.set_rt_info(to_json(program.contract, indent=None), [RECORD])
    openvino.serialize(model, str(path), str(_weights(path)))
    return Exported((f"openvino {openvino.__version__}",), companions=(_weights(path).name,))


def _exported(program: Program, options: Options) -> torch.export.ExportedProgram:
    """Return the program in float32, also for bfloat16: OpenVINO computes in that precision because of its hint."""
    import torch

    if options.precision != "bf16":
        return program.exported
    from exporter.model import precision

    module = program.module
    assert isinstance(module, precision.Cast)
    module.dtype = torch.float32
    return program.capture(module.float())


def _quantized(model: Any, program: Program) -> Any:
    import nncf

    attends = any("attention" in str(node.target) for node in program.exported.graph.nodes)
    kind = nncf.ModelType.TRANSFORMER if attends else None
    return nncf.quantize(model, nncf.Dataset([[t.numpy() for t in one] for one in program.samples]), model_type=kind)


def load(path: Path, options: Options) -> Loaded:
    """Compile the model with the hint for latency; int8 keeps OpenVINO's own choice for what is not quantized."""
    import openvino
    import torch

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": options.threads, **HINTS[options.precision]}
    core = openvino.Core()
    try:
        request = core.compile_model(core.read_model(str(path), str(_weights(path))), "CPU", settings)
        call = request.create_infer_request()
    except RuntimeError as error:
        raise ArtifactError(f"OpenVINO cannot load {path}: {error}") from error

    def run(inputs: Tensors) -> Tensors:
        # The tensors are shared, so that nothing is copied; `infer` would overwrite outputs that are shared.
        found = call.infer([tensor.numpy() for tensor in inputs], share_inputs=True, share_outputs=True)
        return tuple(torch.from_numpy(value) for value in found.to_tuple())

    return Loaded(run, lambda: "CPU", takes=len(request.inputs))


def read_contract(path: Path) -> Contract:
    """Return the contract in the model's runtime information. Raise ArtifactError if there is none."""
    try:
        found = ElementTree.parse(path).getroot().find(f"rt_info/{RECORD}")
    except (OSError, ElementTree.ParseError) as error:
        raise ArtifactError(f"{path} is not a model of OpenVINO: {error}") from error
    if found is None:
        raise ArtifactError(f"{path} carries no contract", "export it with exporter")
    return contract_files.parse(found.get("value", ""), path)


def _weights(path: Path) -> Path:
    return path.with_name(path.name + ".bin")
