"""onnxruntime as it is used without exporter: torch.onnx.export, its own quantization, a session with its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import contract_files
from exporter.core.contract_records import Contract
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import to_json
from exporter.targets import Exported, Loaded, Options

if TYPE_CHECKING:
    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

artifact = "ort.onnx"
variants = ("",)
precisions = ("fp32", "int8")
requires = ("onnx", "onnxscript", "onnxruntime-gpu|onnxruntime")
native = False
needs_program = True
assumes = ("graph",)
cost = 4
libraries = ("onnx", "onnxruntime", "onnxscript")
PROPERTY = "exporter_contract"


def export(program: Program, path: Path, options: Options) -> Exported:
    """Translate the exported program. For int8, prepare and quantize it as onnxruntime's documentation recommends."""
    import onnx
    import torch

    names = [spec.name for spec in program.contract.inputs]
    torch.onnx.export(program.exported, (), str(path), dynamo=True, external_data=False, input_names=names)
    note = _quantize(path, names, program) if options.precision == "int8" else ""
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {PROPERTY: to_json(program.contract, indent=None)})
    onnx.save(model, str(path))
    return Exported(tuple(filter(None, (note,))))


def _quantize(path: Path, names: list[str], program: Program) -> str:
    """Quantize in place: statically if there are convolutions, as recommended for them, otherwise dynamically."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter([dict(zip(names, (t.numpy() for t in one), strict=True)) for one in program.samples])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.left, None)

    prepared = str(path.with_name(f"prepared-{path.name}"))
    quant_pre_process(str(path), prepared, skip_symbolic_shape=True)  # it fails on BERT's shape arithmetic
    convolves = any(node.op_type == "Conv" for node in onnx.load(prepared).graph.node)
    if convolves:
        unsigned = quantization.QuantType.QUInt8  # for x86, where products of two signed numbers are slower
        quantization.quantize_static(prepared, str(path), Samples(), per_channel=True, activation_type=unsigned)
    else:
        quantization.quantize_dynamic(prepared, str(path))
    Path(prepared).unlink()
    return "quantize_static" if convolves else "quantize_dynamic"


def load(path: Path, options: Options) -> Loaded:
    """Create a session whose only option is the number of threads."""
    import onnxruntime
    import torch

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    try:
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ArtifactError(f"onnxruntime cannot load {path}: {error}") from error
    names = [one.name for one in session.get_inputs()]

    def run(inputs: Tensors) -> Tensors:
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})
        return tuple(map(torch.from_numpy, found))

    return Loaded(run, lambda: "CPU", takes=len(names))


def read_contract(path: Path) -> Contract:
    """Return the contract in the model's metadata. Raise ArtifactError if there is none."""
    import onnx

    for entry in onnx.load(str(path)).metadata_props:
        if entry.key == PROPERTY:
            return contract_files.parse(entry.value, path)
    raise ArtifactError(f"{path} carries no contract", "export it with exporter")
