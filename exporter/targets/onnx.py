"""ONNX, run by onnxruntime.

This file is long because a target is one file.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import causes, contract, contract_files, environment, source_lines
from exporter.core.contract_records import PRECISIONS, Contract
from exporter.core.errors import ArtifactError, BothFailed, ExportError
from exporter.core.expressions import Expression
from exporter.core.json_codec import to_json
from exporter.core.parity_records import SizeLimit, Warned
from exporter.targets import (
    GB,
    Exported,
    Loaded,
    Need,
    Options,
    Part,
    TritonBackend,
    _onnx_axes,
    _ort_cuda_graphs,
    _specialized,
)
from exporter.targets._onnx_parts import PROPERTY as PROPERTY
from exporter.targets._onnx_parts import parts as parts

if TYPE_CHECKING:
    import torch

    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

artifact = "model.onnx"
variants = ("",)
precisions = PRECISIONS
requires = ("onnx", "onnxscript", "onnxruntime-gpu|onnxruntime")
native = False
needs_program = True
assumes = ("graph",)
cost = 4
also_called = ("ort", "onnxruntime")
companions = (".data",)
libraries = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")
modules = ("onnx", "onnxscript", "onnxruntime")
question = "torch.onnx: operators without a translation"
portability = 0
export_need, session_need = Need(2.2, 0.8 * GB), Need(2.2, 1.5 * GB)
runtime = "onnxruntime"
triton = TritonBackend("onnxruntime", "onnxruntime_onnx", "model.onnx", named=True)
ONE_FILE_BYTES = 1.5e9  # protobuf ends at 2 GB
DYNAMO = "torch's exporter of exported programs"
OLDER = "torch's older exporter, from a trace, for the other fails"


def export(program: Program, path: Path, options: Options) -> Exported:
    """Translate the exported program; weights stay in the one file where they fit."""
    import onnx

    if program.keeps_state and program.contract.state:
        names = ", ".join(tensor.name for tensor in program.contract.state.tensors)
        remedy = "--state inputs makes it inputs and outputs"
        raise ExportError(f"ONNX carries no state from call to call, and the model keeps {names}", remedy)
    if options.precision == "int8" and options.device != "cpu":
        raise ExportError(
            "onnxruntime has no CUDA kernels for the layers that it quantizes", "choose compile@int8, or onnx@fp16"
        )
    if program.entries:
        if options.precision == "int8":
            raise ExportError("a quantized ONNX model has one entry", "leave out --specialize, or choose compile@int8")
        return _export_entries(program, path, options)
    translated = _translate((program,), options)
    made = translated.programs[0]
    size = _weights(made)
    made.model.metadata_props[PROPERTY] = to_json(program.contract, indent=None)
    companion = path.name + ".data"
    made.save(str(path), external_data=size > ONE_FILE_BYTES)
    notes = (_quantize(program, path, size),) if options.precision == "int8" else ()
    onnx.checker.check_model(str(path))
    companions = (companion,) if (path.parent / companion).is_file() else ()
    fixed = tuple(_fixed(made.model.graph, program.contract))
    return Exported((translated.note, *notes), translated.warnings, companions, limits=fixed)


def _quantize(program: Program, path: Path, size: int) -> str:
    if size > ONE_FILE_BYTES:
        raise ExportError("onnxruntime quantizes models below 2 GB", "choose onnx@fp16, or compile@int8")
    from exporter.targets import _int8

    how = _int8.onnx(path, [spec.name for spec in program.contract.inputs], program.samples)
    found = program.calibration if how == "static" else "ranges found at each call"
    return f"{how} int8 by onnxruntime, {found}"


def _export_entries(program: Program, path: Path, options: Options) -> Exported:
    """One model that branches to the entry of its input's size."""
    import onnx

    translated = _translate(tuple(program.entries.values()), options)
    models = {size: one.model_proto for size, one in zip(program.entries, translated.programs, strict=True)}
    made = _specialized.onnx_model(models, program.contract)
    onnx.helper.set_model_props(made, {PROPERTY: to_json(program.contract, indent=None)})
    external = sum(len(weight.raw_data) for weight in made.graph.initializer) > ONE_FILE_BYTES
    companion = path.name + ".data"
    onnx.save(made, str(path), save_as_external_data=external, location=companion)
    onnx.checker.check_model(str(path))
    return Exported((translated.note,), translated.warnings, (companion,) if external else ())


@dataclass(frozen=True)
class _Translated:
    """torch's ONNX programs, all by one exporter; what it is called and what it warned of."""

    programs: tuple[Any, ...]
    exporter: str
    warnings: tuple[Warned, ...] = ()

    @property
    def note(self) -> str:
        """What the row says of it."""
        return f"opset {self.programs[0].model.opset_imports.get('', '?')}, by {self.exporter}"


def _translate(programs: tuple[Program, ...], options: Options) -> _Translated:
    """By torch's exporter of exported programs, else by its older one. ExportError names what ONNX cannot take."""
    from exporter.targets import _onnx_tracing

    captured = False
    try:
        exported = [program.exported for program in programs]
        captured = not any(map(_onnx_tracing.takes_numbers, exported))
        return _Translated(tuple(map(partial(_by_dynamo, options=options), programs, exported)), DYNAMO)
    except ExportError as error:
        failed = error
    try:
        made = [_onnx_tracing.export(program, options.opset, captured) for program in programs]
    except ExportError as error:
        if not captured:  # the trace is not to be trusted, or fails of the same
            raise failed from None
        raise BothFailed.of(failed, ExportError(causes.shorten(str(error)), error.remedy, error.blame)) from failed
    for one, _ in made:
        _free_names(one.model.graph)
    warned = dict.fromkeys(warning for _, warnings in made for warning in warnings)
    return _Translated(tuple(one for one, _ in made), f"{OLDER}: {causes.shorten(str(failed))}", tuple(warned))


def _by_dynamo(program: Program, exported: torch.export.ExportedProgram, options: Options) -> Any:
    """torch's ONNX program of the exported one. ExportError names what it does not translate."""
    import torch

    from exporter.model import recurrent, type_promotion

    type_promotion.make_explicit(exported)
    names: dict[str, Any] = {
        "input_names": [s.name for s in program.contract.inputs],
        "output_names": contract.output_names(program.contract),
    }
    logging.getLogger("onnxscript").setLevel(logging.ERROR)

    def translate(optimize: bool) -> Any:
        with recurrent.kept():
            return torch.onnx.export(
                exported, (), dynamo=True, opset_version=options.opset, verbose=False, optimize=optimize, **names
            )

    try:
        try:
            made = translate(optimize=True)
        except Exception as error:
            if not _is_optimizers(_cause(error)):
                raise
            made = translate(optimize=False)  # onnxruntime has an optimiser of its own
    except Exception as error:  # the exporter wraps whatever it meets
        raise ExportError(f"torch.onnx.export: {source_lines.named(_cause(error))}") from error
    if made is None:
        raise ExportError("torch.onnx.export gave no program")
    _free_names(made.model.graph)
    _leave_out_folders(made.model.graph)
    _onnx_axes.name(made.model.graph, (*program.function.inputs, *program.function.outputs))
    return made


def _weights(made: Any) -> int:
    """Bytes of the weights that the graph holds."""
    return sum(value.const_value.nbytes for value in made.model.graph.initializers.values() if value.const_value)


def _fixed(graph: Any, promised: Contract) -> Iterator[SizeLimit]:
    """Dimensions that the contract promises to move and the graph holds fast."""
    for value, spec in zip(graph.inputs, promised.inputs, strict=False):
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and isinstance(value.shape[axis], int):
                symbols = (Expression.parse(dim).name,)
                yield SizeLimit(dim, "fixed", str(value.shape[axis]), symbols, by="the ONNX graph")


def _free_names(graph: Any) -> None:
    """Give inner values that bear an input's or output's name another one; torch.onnx.export does not look for them."""
    ends = {id(value) for value in (*graph.inputs, *graph.outputs)}
    taken = {value.name for value in (*graph.inputs, *graph.outputs)}
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name in taken and id(value) not in ends:
                value.name = f"{value.name}_inner"


def _leave_out_folders(graph: Any) -> None:
    """Name the files of stack traces without the folders of this machine."""
    for node in graph.all_nodes():
        for name, value in node.metadata_props.items():
            if name.endswith("stack_trace"):
                node.metadata_props[name] = source_lines.portable(value)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_optimizers(error: BaseException) -> bool:
    """Whether the graph was translated, and an error of onnxscript's optimiser came after."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("/onnxscript/optimizer/" in Path(frame.filename).as_posix() for frame in frames)


def read_contract(path: Path) -> Contract:
    """The metadata property of the model."""
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's errors are of many kinds
        raise ArtifactError(f"{path} is not an ONNX model: {error}", "export it again") from error
    for entry in model.metadata_props:
        if entry.key == PROPERTY:
            return contract_files.parse(entry.value, path)
    raise ArtifactError(f"{path} carries no contract", "export it with exporter")


def load(path: Path, options: Options) -> Loaded:
    """An onnxruntime session on the device. ArtifactError when it fell back to the CPU without leave."""
    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    if options.device == "cpu":
        session = _session(path, options)
        return Loaded(_run_cpu(session), lambda: "CPU", takes=_takes(session))
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    session, failure = _with_graphs(path, options) if options.cuda_graphs else (None, "")
    captures = session is not None
    session = session or _session(path, options)
    # Shape arithmetic stays on the CPU by onnxruntime's own choice; a session without the CUDA provider fell back.
    if session.get_providers()[0] == "CPUExecutionProvider":
        if not options.allow_cpu_fallback:
            raise ArtifactError(
                "onnxruntime fell back to the CPU",
                "run `exporter doctor`; export and check take --allow-cpu-fallback where the CPU will do",
            )
        return Loaded(_run_cpu(session), lambda: "CPU", takes=_takes(session))

    bound = _ort_cuda_graphs.Bound(session, options.device)
    if not captures:
        notes = (f"no CUDA graph: {failure}",) if failure else ()
        return Loaded(bound.run, lambda: "CUDA", lambda: notes, takes=_takes(session))
    graphs = _ort_cuda_graphs.Graphs(bound)
    return Loaded(graphs.run, lambda: "CUDA graph", takes=_takes(session))


def _takes(session: Any) -> int:
    """How many inputs the model has."""
    return len(session.get_inputs())


def _with_graphs(path: Path, options: Options) -> tuple[Any, str]:
    """A session that captures CUDA graphs; or None, and why there is none."""
    try:
        session = _session(path, options, graphs=True)
    except ArtifactError as error:
        return None, _ort_cuda_graphs.reason(error)
    obstacle = _ort_cuda_graphs.obstacle(session)
    return (None, obstacle) if obstacle else (session, "")


def _session(path: Path, options: Options, graphs: bool = False) -> Any:
    """ArtifactError where onnxruntime does not load the model, or with `graphs` would not capture it."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = options.threads
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":  # onnxruntime's own threads do not look for it
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if options.device != "cpu":
        index = int(options.device.partition(":")[2] or 0)
        tf32 = int(options.precision == "tf32")
        cuda = {"device_id": index, "use_tf32": tf32, "enable_cuda_graph": int(graphs)}
        providers.insert(0, ("CUDAExecutionProvider", cuda))
    try:  # without enable_fallback=0 a refused capture would be a session on the CPU
        return ort.InferenceSession(str(path), settings, providers=providers, enable_fallback=int(not graphs))
    except Exception as error:  # onnxruntime's exceptions share no base
        said = source_lines.message(error)
        raise ArtifactError(
            f"onnxruntime cannot load {path}: {said}", causes.remedy(said, "onnx") or "run `exporter doctor`"
        ) from error


def _run_cpu(session: Any) -> Callable[[Tensors], Tensors]:
    import torch

    names = [i.name for i in session.get_inputs()]
    if any(value.type == "tensor(bfloat16)" for value in (*session.get_inputs(), *session.get_outputs())):
        return _run_bfloat16(session, names)

    def run(inputs: Tensors) -> Tensors:
        outputs = session.run(None, {n: t.detach().cpu().numpy() for n, t in zip(names, inputs, strict=True)})
        return tuple(torch.from_numpy(o) for o in outputs)

    return run


def _run_bfloat16(session: Any, names: list[str]) -> Callable[[Tensors], Tensors]:
    """NumPy has no bfloat16; onnxruntime's own values have."""
    import onnx
    import onnxruntime as ort
    import torch

    def value(tensor: torch.Tensor) -> Any:
        if tensor.dtype != torch.bfloat16:
            return ort.OrtValue.ortvalue_from_numpy(tensor.numpy())
        bits = tensor.view(torch.int16).numpy()
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)

    def run(inputs: Tensors) -> Tensors:
        given = {n: value(t.detach().cpu().contiguous()) for n, t in zip(names, inputs, strict=True)}
        return tuple(map(_ort_cuda_graphs.tensor, session.run_with_ort_values(None, given)))

    return run


def probe() -> str:
    """The providers that onnxruntime has."""
    import onnxruntime

    return " ".join(onnxruntime.get_available_providers())


def examine(probed: str) -> tuple[Part, ...]:
    """Whether onnxruntime can use the GPU that is there."""
    if not environment.gpus() or "CUDAExecutionProvider" in probed:
        return ()
    remedy = "pip uninstall onnxruntime; pip install onnxruntime-gpu"
    return (Part("bad", "onnxruntime", "has no CUDA provider", remedy),)
