"""ONNX models, run by onnxruntime.

This file is long because a target is one file.
"""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import causes, contract, contract_files, environment, source_lines
from exporter.core.contract_records import PRECISIONS, Contract
from exporter.core.errors import ArtifactError, Blame, BothFailed, ExportError
from exporter.core.expressions import Expression
from exporter.core.json_codec import to_json
from exporter.core.parity_records import SizeLimit, Warned
from exporter.core.precisions import SMALL_WEIGHTS
from exporter.core.tuning_records import Choice
from exporter.model import layer_names
from exporter.targets import (
    GB,
    Candidate,
    Exported,
    Loaded,
    Need,
    Options,
    Part,
    TritonBackend,
    _candidates,
    _onnx_axes,
    _onnx_file,
    _onnx_metadata,
    _onnx_rewriting,
    _onnx_stored,
    _onnx_translations,
    _ort_cuda_graphs,
    _ort_level,
    _specialized,
    _steps_onnx,
)
from exporter.targets._onnx_parts import PROPERTY as PROPERTY
from exporter.targets._onnx_parts import parts as parts

if TYPE_CHECKING:
    import torch

    from exporter.model.capture import Program
    from exporter.model.tensors import Run, Tensors

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
preloads = ("onnx", "torch.onnx._internal.exporter._core", f"{__name__}:preload_translations")
question = "torch.onnx: operators without a translation"
portable = True
portable_precisions = ("int8",)
portability = 1
export_need, session_need = Need(2.2, 0.8 * GB), Need(2.2, 1.5 * GB)
runtime = "onnxruntime"
triton = TritonBackend("onnxruntime", "onnxruntime_onnx", "model.onnx", named=True)
ONE_FILE_BYTES = 1.5e9  # protobuf's limit is 2 GB
WIDE = "on x86 CPUs without VNNI, sums may saturate: export with --portable for those"
DYNAMO = "from the exported program"
OLDER = "from a trace, by torch's older exporter, because the newer one fails"


def no_state(names: Iterable[str]) -> ExportError:
    """Return the error for a model that keeps state in the named tensors."""
    found = f"ONNX carries no state from call to call, and the model keeps {', '.join(names)}"
    return ExportError(found, "--state inputs turns the state into inputs and outputs")


def preload_translations() -> None:
    """Make torch define its translations of operators, which the process keeps."""
    from torch.onnx import _constants
    from torch.onnx._internal.exporter import _registration

    with _onnx_rewriting.with_one_registry():
        _registration.ONNXRegistry.from_torchlib(opset_version=_constants.ONNX_DEFAULT_OPSET)


def export(program: Program, path: Path, options: Options) -> Exported:
    """Translate the exported program to ONNX. Weights that do not fit into one file go into a companion file."""
    import onnx
    import onnxruntime as ort

    if program.keeps_state and program.contract.state:
        raise no_state(tensor.name for tensor in program.contract.state.tensors)
    if options.precision == "int8" and options.device != "cpu":
        raise ExportError("onnxruntime has no CUDA kernels for quantized layers", "choose compile@int8, or onnx@fp16")
    _require_real(program.function)
    _ort_level.configure(ort.SessionOptions(), options.session_options)  # before the slow steps
    if program.entries:
        if options.precision == "int8":
            raise ExportError(
                "a quantized ONNX model supports only one entry", "leave out --specialize, or choose compile@int8"
            )
        return _export_entries(program, path, options)
    translated = _translate((program,), options)
    translated.require_opset(options.opset)
    made = translated.programs[0]
    if options.precision in SMALL_WEIGHTS:
        _onnx_stored.keep(made.model.graph)
    size = _weights(made)
    made.model.metadata_props.update(_properties(program, options))
    companion = path.name + ".data"
    if size > ONE_FILE_BYTES:
        made.save(str(path), external_data=True)
    else:
        _onnx_file.save(made.model, path)
    notes = _quantize(program, path, size, options) if options.precision == "int8" else ()
    if notes or size > ONE_FILE_BYTES:
        onnx.checker.check_model(str(path))
    companions = (companion,) if (path.parent / companion).is_file() else ()
    fixed = tuple(_fixed(made.model.graph, program.contract))
    return Exported((translated.note, *notes, *_loading(options)), translated.warnings, companions, limits=fixed)


def _properties(program: Program, options: Options) -> dict[str, str]:
    """Return the metadata of a model: its contract, and how it is to be loaded if not by default."""
    found = {PROPERTY: to_json(program.contract, indent=None)}
    if (level := _ort_level.asked(options)) != "all":
        found[_ort_level.PROPERTY] = level
    if options.session_options:
        found[_ort_level.SESSION] = json.dumps(options.session_options)
    return found


def _loading(options: Options) -> tuple[str, ...]:
    """Return the notes about the level of optimizations and the session."""
    level = _ort_level.asked(options)
    found = () if level == "all" else (f"graph optimizations of onnxruntime: {level}",)
    return (*found, *(f"onnxruntime with {one}" for one in options.session_options))


def _require_real(function: Contract) -> None:
    """Raise ExportError for a complex input or output, which torch's exporters turn into one of another rank."""
    for spec in (*function.inputs, *function.outputs):
        if spec.dtype.startswith("complex"):
            raise ExportError(f"{spec.name} is {spec.dtype}", blame=Blame("complex-numbers"))


def _quantize(program: Program, path: Path, size: int, options: Options) -> tuple[str, ...]:
    """Quantize the model at `path` in place. Return notes on how."""
    if size > ONE_FILE_BYTES:
        raise ExportError("onnxruntime quantizes only models below 2 GB", "choose onnx@fp16, or compile@int8")
    from exporter.targets import _int8, _int8_onnx

    kept, narrow = options.keep_float, _int8.is_narrow(options)
    if kept:
        layer_names.require_known(program.module, kept)
    names = [spec.name for spec in program.contract.inputs]
    how = _int8_onnx.quantize(path, names, lambda: program.samples, narrow, kept)
    found = program.calibration if how == "static" else "activation ranges computed at each call"
    return f"{how} int8 by onnxruntime, {found}", _int8.NARROW_WEIGHTS if narrow else WIDE


def _export_entries(program: Program, path: Path, options: Options) -> Exported:
    """Export one model that branches to the entry for the size of its input."""
    import onnx

    translated = _translate(tuple(program.entries.values()), options)
    translated.require_opset(options.opset)
    models = {size: one.model_proto for size, one in zip(program.entries, translated.programs, strict=True)}
    made = _specialized.onnx_model(models, program.contract)
    onnx.helper.set_model_props(made, _properties(program, options))
    external = sum(len(weight.raw_data) for weight in made.graph.initializer) > ONE_FILE_BYTES
    companion = path.name + ".data"
    onnx.save(made, str(path), save_as_external_data=external, location=companion)
    onnx.checker.check_model(str(path))
    return Exported((translated.note, *_loading(options)), translated.warnings, (companion,) if external else ())


@dataclass(frozen=True)
class _Translated:
    """torch's ONNX programs, the exporter that made all of them, and its warnings."""

    programs: tuple[Any, ...]
    exporter: str
    warnings: tuple[Warned, ...] = ()

    @property
    def note(self) -> str:
        """The note for the row."""
        return f"opset {self.programs[0].model.opset_imports.get('', '?')}, {self.exporter}"

    def require_opset(self, asked: int | None) -> None:
        """Raise ExportError if a program has another opset: torch keeps its own if it cannot convert the program."""
        import onnx

        for one in self.programs:
            made = one.model.opset_imports.get("", asked)
            if asked is not None and made != asked:
                newest = onnx.defs.onnx_opset_version()
                cause = f"torch.onnx.export made a model of opset {made}, not {asked}"
                if asked > newest:
                    cause = f"{cause}; the newest opset of onnx {onnx.__version__} is {newest}"
                blame = Blame("opset-too-new") if asked > newest else None
                raise ExportError(cause, f"give --opset {made}, or omit it", blame)


def _translate(programs: tuple[Program, ...], options: Options) -> _Translated:
    """Translate with torch's newer exporter or, if it fails, the older one. ExportError names what failed."""
    from exporter.model import computed_weights
    from exporter.targets import _onnx_tracing

    captured = False
    try:
        exported = [program.exported for program in programs]
        captured = not any(map(_onnx_tracing.takes_numbers, exported))
        if options.precision not in SMALL_WEIGHTS:  # which are dequantized in the graph
            exported = list(map(computed_weights.fold, exported))
        return _Translated(tuple(map(partial(_by_dynamo, options=options), programs, exported)), DYNAMO)
    except ExportError as error:
        failed = error
    try:
        made = [_onnx_tracing.export(program, options.opset, captured) for program in programs]
    except ExportError as error:
        if not captured:  # the trace cannot be trusted, or fails for the same reason
            raise failed from None
        raise BothFailed.of(failed, ExportError(causes.shorten(str(error)), error.remedy, error.blame)) from failed
    for one, _ in made:
        _free_names(one.model.graph)
    warned = dict.fromkeys(warning for _, warnings in made for warning in warnings)
    return _Translated(tuple(one for one, _ in made), f"{OLDER}: {causes.shorten(str(failed))}", tuple(warned))


def _by_dynamo(program: Program, exported: torch.export.ExportedProgram, options: Options) -> Any:
    """Return torch's ONNX program for the exported program. ExportError names what cannot be translated."""
    import torch

    from exporter.model import recurrent, type_promotion
    from exporter.targets import _onnx_decomposing

    type_promotion.make_explicit(exported)
    settings: dict[str, Any] = {
        "input_names": [s.name for s in program.contract.inputs],
        "output_names": contract.output_names(program.contract),
        "custom_translation_table": _onnx_translations.table(options.opset),
    }
    logging.getLogger("onnxscript").setLevel(logging.ERROR)

    def translate(optimize: bool) -> Any:
        with (
            recurrent.kept(),
            _onnx_decomposing.one_by_one(),
            _onnx_rewriting.without_needless_searches(),
            _onnx_rewriting.without_needless_runs(),
            _onnx_rewriting.with_one_registry(),
            _onnx_rewriting.with_exact_zeros(),
            _onnx_rewriting.with_unique_names(),
        ):
            return torch.onnx.export(
                exported, (), dynamo=True, opset_version=options.opset, verbose=False, optimize=optimize, **settings
            )

    try:
        try:
            made = translate(optimize=True)
        except Exception as error:
            if not _is_optimizers(_cause(error)):
                raise
            made = translate(optimize=False)  # onnxruntime has its own optimizer
    except Exception as error:  # the exporter wraps errors of any type
        raise ExportError(f"torch.onnx.export: {source_lines.named(_cause(error))}") from error
    if made is None:
        raise ExportError("torch.onnx.export returned no program")
    _free_names(made.model.graph)
    _leave_out_folders(made.model.graph)
    _onnx_axes.name(made.model.graph, (*program.function.inputs, *program.function.outputs))
    return made


def _weights(made: Any) -> int:
    """Return the size of the graph's weights in bytes."""
    return sum(value.const_value.nbytes for value in made.model.graph.initializers.values() if value.const_value)


def _fixed(graph: Any, promised: Contract) -> Iterator[SizeLimit]:
    """Yield the dimensions that are dynamic in the contract but fixed in the graph."""
    for value, spec in zip(graph.inputs, promised.inputs, strict=False):
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and isinstance(value.shape[axis], int):
                symbols = Expression.parse(dim).names
                yield SizeLimit(dim, "fixed", str(value.shape[axis]), symbols, by="the ONNX graph")


def _free_names(graph: Any) -> None:
    """Rename inner values that have the name of an input or output; torch.onnx.export does not check for them."""
    ends = {id(value) for value in (*graph.inputs, *graph.outputs)}
    taken = {value.name for value in (*graph.inputs, *graph.outputs)}
    inner = [value for node in graph.all_nodes() for value in node.outputs]
    used = {*taken, *graph.initializers, *(value.name for value in inner)}

    def free(name: str) -> str:
        while name in used:
            name += "_inner"
        used.add(name)
        return name

    for value in inner:
        if value.name in taken and id(value) not in ends:
            value.name = free(value.name)
    for name, value in list(graph.initializers.items()):
        if name in taken and id(value) not in ends:
            del graph.initializers[name]
            value.name = free(name)
            graph.register_initializer(value)


def _leave_out_folders(graph: Any) -> None:
    """Remove this machine's directories from the file names in stack traces."""
    for node in graph.all_nodes():
        for name, value in node.metadata_props.items():
            if name.endswith("stack_trace"):
                node.metadata_props[name] = source_lines.portable(value)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_optimizers(error: BaseException) -> bool:
    """Return whether the error comes from onnxscript's optimizer, after the graph was translated."""
    frames = traceback.extract_tb(error.__traceback__)
    return any("/onnxscript/optimizer/" in Path(frame.filename).as_posix() for frame in frames)


def read_contract(path: Path) -> Contract:
    """Return the contract in the model's metadata. Raise ArtifactError if there is none."""
    try:
        text = _onnx_metadata.find(path, PROPERTY, 2 * contract_files.LARGEST)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} is not an ONNX model: {error}", "export it again") from error
    if text is None:
        raise ArtifactError(f"{path} carries no contract", "export it with exporter")
    return contract_files.parse(text, path)


def load(path: Path, options: Options) -> Loaded:
    """Create an onnxruntime session on the device.

    Raise ArtifactError if it falls back to the CPU and `options.allow_cpu_fallback` is off.
    """
    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    profile = partial(_steps_onnx.record, path, partial(_profiled, options), options.device)
    if options.device == "cpu":
        session = _session(path, options)
        return Loaded(_run_cpu(session), lambda: "CPU", takes=_takes(session), profile=profile, own_threads=True)
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    session, failure = _with_graphs(path, options) if options.cuda_graphs else (None, "")
    captures = session is not None
    session = session or _session(path, options)
    # onnxruntime keeps shape arithmetic on the CPU by design; only a session without the CUDA provider fell back.
    if session.get_providers()[0] == "CPUExecutionProvider":
        if not options.allow_cpu_fallback:
            raise ArtifactError(
                "onnxruntime fell back to the CPU",
                "run `exporter doctor`, or accept the CPU with --allow-cpu-fallback (export and check)",
            )
        return Loaded(_run_cpu(session), lambda: "CPU", takes=_takes(session), own_threads=True)

    bound = _ort_cuda_graphs.Bound(session, options.device)
    if not captures:
        notes = (f"no CUDA graph: {failure}",) if failure else ()
        return Loaded(bound.run, lambda: "CUDA", lambda: notes, takes=_takes(session), profile=profile)
    graphs = _ort_cuda_graphs.Graphs(bound)
    return Loaded(graphs.run, lambda: "CUDA graph", takes=_takes(session), profile=profile)


def _takes(session: Any) -> int:
    """Return the number of inputs of the model."""
    return len(session.get_inputs())


def _with_graphs(path: Path, options: Options) -> tuple[Any, str]:
    """Return a session that captures CUDA graphs, or None and the reason."""
    try:
        session = _session(path, options, graphs=True)
    except ArtifactError as error:
        return None, _ort_cuda_graphs.reason(error)
    obstacle = _ort_cuda_graphs.obstacle(session)
    return (None, obstacle) if obstacle else (session, "")


def _profiled(options: Options, path: Path, folder: Path) -> tuple[Any, Run]:
    """Return a session that writes its profile and its optimized model to the folder, and what calls it."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.enable_profiling = True
    settings.profile_file_prefix = str(folder / "run")
    settings.optimized_model_filepath = str(folder / _steps_onnx.OPTIMIZED)
    settings.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
    settings.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    session = _session(path, options, settings=settings)
    if options.device == "cpu":
        return session, _run_cpu(session)
    return session, _ort_cuda_graphs.Bound(session, options.device).run


def _session(path: Path, options: Options, graphs: bool = False, settings: Any = None) -> Any:
    """Create a session. Raise ArtifactError if the model cannot be loaded or, with `graphs`, cannot be captured."""
    import onnxruntime as ort

    settings = settings or ort.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.graph_optimization_level = _ort_level.of(path, options.graph_optimization)
    _ort_level.configure(settings, options.session_options or _ort_level.session_options(path))
    if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE":  # onnxruntime's own threads ignore it
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if options.device != "cpu":
        index = int(options.device.partition(":")[2] or 0)
        tf32 = int(options.precision == "tf32")
        cuda = {"device_id": index, "use_tf32": tf32, "enable_cuda_graph": int(graphs)}
        providers.insert(0, ("CUDAExecutionProvider", cuda))
    try:  # without enable_fallback=0, a refused capture would become a session on the CPU
        return ort.InferenceSession(str(path), settings, providers=providers, enable_fallback=int(not graphs))
    except Exception as error:  # onnxruntime's exceptions have no common base class
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
    """Return a function that runs the session with OrtValues, because NumPy has no bfloat16."""
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


def candidates(options: Options) -> Iterator[Candidate]:
    """Yield what --tune tries: how a session takes memory and schedules nodes, and levels of optimization."""
    given = {one.partition("=")[0] for one in options.session_options}
    on_cpu = ("enable_cpu_mem_arena=False", "session.intra_op.allow_spinning=0", "execution_mode=parallel")
    for one in (*(on_cpu if options.device == "cpu" else ()), "enable_mem_pattern=False"):
        if one.partition("=")[0] not in given:
            yield Candidate(Choice("session_options", (one,)), at_load=True)
    for level in _ort_level.lower(options):
        if level != "none":
            yield Candidate(Choice("graph_optimization", (level,)), at_load=True)
    yield from _candidates.fewer_threads(options)


def probe() -> str:
    """Return the names of onnxruntime's providers."""
    import onnxruntime

    return " ".join(onnxruntime.get_available_providers())


def examine(probed: str) -> tuple[Part, ...]:
    """Check that onnxruntime can use the machine's GPU, if there is one."""
    if not environment.gpus() or "CUDAExecutionProvider" in probed:
        return ()
    remedy = "pip uninstall onnxruntime; pip install onnxruntime-gpu"
    return (Part("bad", "onnxruntime", "lacks the CUDA provider", remedy),)
