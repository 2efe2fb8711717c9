"""AOTInductor (ahead of time), and torch.compile (just in time) as rows for comparison.

This file is long because a target is one file.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import causes, contract, contract_files, environment, machine_code, probing, source_lines
from exporter.core.contract_records import PRECISIONS, Build, Contract, TensorSpec
from exporter.core.errors import ArtifactError, Blame, ContractError, ExporterError, ExportError, MissingDependency
from exporter.core.expressions import Expression
from exporter.core.json_codec import to_json
from exporter.core.precisions import SMALL_WEIGHTS
from exporter.core.size_range import Sizes
from exporter.core.tuning_records import Choice
from exporter.model import custom_ops, layer_names
from exporter.model.state import carrying
from exporter.targets import (
    GB,
    Candidate,
    Exported,
    Loaded,
    Need,
    Options,
    Part,
    TritonBackend,
    _adaptive_pools,
    _candidates,
    _convolutions,
    _fused_gelu,
    _gated_units,
    _gemm,
    _half_gelu,
    _index_adds,
    _inductor,
    _int8,
    _int8_convolutions,
    _integer_powers,
    _objects,
    _package_entries,
    _packages,
    _parallel_loops,
    _specialized,
    _steps_inductor,
    _stored_products,
    _warm_up,
    _weights,
    _winograd,
)
from exporter.targets._package_entries import MODEL

if TYPE_CHECKING:
    import torch

    from exporter.model.capture import Program
    from exporter.model.tensors import Run, Tensors

artifact = "compile.pt2"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # modes of the backend inductor
BACKENDS = ("inductor", "cudagraphs", "aot_eager", "eager")
CUDA_GRAPHS = ("reduce-overhead", "max-autotune", "cudagraphs", "backend=cudagraphs")
live_variants = (*MODES, *BACKENDS, "backend=NAME")
variants = ("", *live_variants)
precisions = PRECISIONS
live_precisions = tuple(name for name in PRECISIONS if name not in ("int8", *SMALL_WEIGHTS))
requires = ("torch",)
native = True
needs_program = True
assumes = ("graph", "code")
cost = 10
also_called = ("aot", "aoti", "aotinductor", "inductor", "pt2")
optional = ("torchao",)
preloads = ("torch._inductor.compile_fx",)
portable = True
question = "torch.compile: graph breaks and recompilations"
portability = 4
instrumented = True
export_need, session_need = Need(3.8, 1.0 * GB), Need(1.5, 1.5 * GB)
triton = TritonBackend("pytorch", "torch_aoti", "model.pt2", batches=False, entries=False, operators=("torchvision",))
read_contract = contract_files.read_zip
# Causes of failures that are not inductor's own.
ELSEWHERE = (
    *("no-compiler", "compiler-unusable", "compiler-killed", "compiler-failed"),
    *("no-openssl", "cache-not-writable", "disk-full", "out-of-memory", "killed"),
)
COMPILER = "install g++ (Debian: apt install g++), or name one in CXX"
WRONG_CXX = "correct CXX, or unset it"


def export(program: Program, path: Path, options: Options) -> Exported:
    """Compile the exported program to a package. Raise MissingDependency without a C++ compiler."""
    import torch
    from torch._inductor import config

    from exporter.model import counted_results, recurrent

    _require_compiler()
    _require_cache()
    if options.portable and not hasattr(config.cpp, "march"):
        raise MissingDependency(
            f"torch {torch.__version__} can only compile packages for this machine",
            "install torch 2.14 or leave out --portable",
        )
    _inductor.parse(options.inductor)  # before the slow steps
    _objects.keep_headers()
    _inductor.repeat_itself()
    slow = _inductor.find_vector_instructions()
    if options.device == "cpu":
        # libtorch.so would pull in every CUDA library; `_settings` links only the two that a CPU package needs.
        os.environ["LIBRARY_PATH"] = f"{Path(torch.__file__).parent / 'lib'}:{os.environ.get('LIBRARY_PATH', '')}"
    unfrozen: tuple[str, ...] = ()
    approximated: set[str] = set()
    entries = () if program.part_of else probing.entry_sizes(options.entries)
    if (entries or program.entries) and program.keeps_state:
        raise ExportError("each entry of a package would keep a separate state", "use --state inputs")
    right = (_convolutions.reading_before_writing(), _convolutions.reading_biases(), _convolutions.packing())
    everywhere = (_parallel_loops.at_all_sizes(), _adaptive_pools.at_all_sizes(), _gated_units.at_all_sizes())
    decompositions = (_index_adds.decomposed(), _integer_powers.decomposed())
    usual = (recurrent.looped(), counted_results.any_number(), _objects.reused())
    patches = (*usual, *decompositions, *everywhere, *right)
    with contextlib.ExitStack() as changed:
        for patch in patches:
            changed.enter_context(patch)
        if options.device == "cpu" and options.precision in ("fp32", "int8", *SMALL_WEIGHTS):
            changed.enter_context(_gemm.compiled(_narrow_rows(options)))
            changed.enter_context(_winograd.compiled())
            changed.enter_context(_int8_convolutions.compiled())
        if options.device != "cpu" and options.precision in ("fp16", "bf16"):
            changed.enter_context(_half_gelu.compiled())
            approximated = changed.enter_context(_fused_gelu.compiled(options.fallback))
        if options.precision in SMALL_WEIGHTS:
            changed.enter_context(_stored_products.compiled())
        changed.enter_context(_inductor.falling_back(options.fallback, program.part_of is None))
        if program.entries:
            graphs = {_specialized.name(size): _graph(entry, options) for size, entry in program.entries.items()}
            unfrozen = _write_somehow(graphs, path, _settings(next(iter(graphs.values())), options), options)
            ops = tuple(dict.fromkeys(op for graph in graphs.values() for op in custom_ops.of_exported(graph)))
        else:
            ops, unfrozen = _package(program, entries, path, options)
    ops = tuple(op for op in ops if op not in (*_int8.COMPILED, _stored_products.NAMESPACE))
    build = _build(options)
    contract_files.append_to_zip(path, to_json(replace(program.contract, ops=ops, build=build, entries=entries)))
    own = _package_entries.notes(entries)
    changes = (*_changed(options), *_fused_gelu.note(approximated))
    notes = (*_quantized(program, options), *own, *unfrozen, *changes, *_notes(build), *slow)
    return Exported(notes, ops=ops, build=build, entries=entries)


def _require_compiler() -> None:
    """Raise MissingDependency if there is no C++ compiler, or if the one that CXX names does not work."""
    _require_usable_compiler()
    if environment.compiler() is None:
        raise MissingDependency("there is no C++ compiler, and AOTInductor needs one", COMPILER, Blame("no-compiler"))


def _require_usable_compiler() -> None:
    """Raise MissingDependency if CXX names a compiler that does not work."""
    if fault := environment.compiler_fault():
        raise MissingDependency(f"CXX: {fault}", WRONG_CXX, Blame("compiler-unusable"))


def _require_cache() -> None:
    """Raise ExportError if inductor may not write to its cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    try:
        tempfile.TemporaryFile(dir=cache_dir()).close()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise ExportError(source_lines.named(error), blame=Blame("cache-not-writable")) from error


def warm_up(options: Options) -> None:
    """Make what all packages for this CPU share, unless it is in inductor's cache directory."""
    _warm_up.once(export, options)


def _changed(options: Options) -> tuple[str, ...]:
    fallbacks = options.fallback if not options.variant else ()  # only packages have them
    return (
        *(f"inductor with {one}" for one in options.inductor),
        *(f"torch's kernel of {name}" for name in fallbacks),
    )


def _narrow_rows(options: Options) -> float:
    """Return how many rows of 7 bits in the example exporter's kernel for AVX2 multiplies."""
    if options.precision != "int8" or not _int8.is_narrow(options):
        return 0
    return _gemm.PORTABLE_ROWS if options.portable else math.inf


def _quantized(program: Program, options: Options) -> tuple[str, ...]:
    """Return the notes for an int8 row."""
    if options.precision != "int8":
        return ()
    if _weights_alone(options):
        return ("weights in int8, computed in bfloat16",)
    bits = (_int8.NARROW_INPUTS,) if _int8.is_narrow(options) else ()
    return (*dict.fromkeys(one.calibration for one in program.entries.values() or (program,)), *bits)


def _settings(graph: torch.export.ExportedProgram, options: Options) -> dict[str, Any]:
    """Return inductor's settings for one graph."""
    # With a fixed thread count, running with more threads than at compile time crashes.
    settings: dict[str, Any] = {"freezing": True, "cpp.dynamic_threads": True}
    if options.device == "cpu":
        settings |= {"aot_inductor.link_libtorch": False, "aot_inductor.custom_op_libs": ["torch_cpu", "c10"]}
        if _packages.loads_folders():
            settings |= _weights.SETTINGS
    half = options.precision in ("bf16", "fp16")
    if options.portable:
        # oneDNN's operators on packed weights reject half precision if the CPU lacks instructions for it.
        settings |= {"cpp.simdlen": 256, "cpp.march": machine_code.PORTABLE.level, "cpp.weight_prepack": not half}
    if options.device != "cpu" and not half and graph.range_constraints and _convolves(graph):
        settings["freezing"] = False  # convolutions in the channels-last layout can be wrong with dynamic sizes
    if _weights_alone(options):
        settings["freezing"] = False  # freezing would convert the weights back
    measured = _steps_inductor.settings(options.device) if options.profiled else {}
    return settings | measured | _inductor.parse(options.inductor)


def _convolves(graph: torch.export.ExportedProgram) -> bool:
    graphs = (module.graph for module in graph.graph_module.modules() if hasattr(module, "graph"))
    return any("conv" in str(node.target) for one in graphs for node in one.nodes if node.op == "call_function")


def _weights_alone(options: Options) -> bool:
    """Return whether int8 applies only to weights: inductor computes in int8 only on the CPU."""
    return options.precision == "int8" and options.device != "cpu"


def _build(options: Options) -> Build:
    """Return what the package is built for: kernels for this GPU, the rest for this CPU or a portable level."""
    import torch

    build = machine_code.PORTABLE if options.portable else machine_code.native()
    if options.device == "cpu":
        return build
    capability = "{}.{}".format(*torch.cuda.get_device_capability(options.device))
    return replace(build, capability=capability, cuda=torch.version.cuda or "", driver=environment.driver())


def _notes(build: Build) -> tuple[str, ...]:
    if not build.level:
        return ()
    kernels = f", except its kernels for compute capability {build.capability}" if build.capability else ""
    return (f"portable ({build.level}){kernels}",)


def _graph(program: Program, options: Options) -> torch.export.ExportedProgram:
    """Return the exported program to compile."""
    if options.precision in SMALL_WEIGHTS and program.part_of is None:
        from exporter.model import small_weights

        with small_weights.multiplied_by(program.module, _stored_products.product()):
            return program.capture(program.module)
    if options.precision != "int8":
        return program.artifact
    from exporter.model import capture, computed_weights, precision

    if _weights_alone(options):
        outputs = tuple(spec.dtype for spec in program.function.outputs)
        half = precision.cast(copy.deepcopy(program.module), "bf16", outputs, options.keep_float)
        return program.capture(_int8.weights(half, options.keep_float))
    try:
        if options.keep_float:
            layer_names.require_known(program.module, options.keep_float)
        whole = _int8.functional(computed_weights.fold(program.exported)).module(check_guards=False)
        quantized = _int8.pt2e(whole, program.samples, _int8.is_narrow(options), options.keep_float)
    except (ValueError, IndexError, _int8.NothingToQuantize) as error:  # perhaps it lacks what a strict export records
        try:
            graph = capture.export_program(program.module, program.example, program.function, strict=True)
        except ExportError:
            if isinstance(error, _int8.NothingToQuantize):
                raise error from None
            raise
        whole = _int8.functional(computed_weights.fold(graph)).module(check_guards=False)
        quantized = _int8.pt2e(whole, program.samples, _int8.is_narrow(options), options.keep_float)
    return program.capture(quantized)


def _package(
    program: Program, entries: Sequence[Sizes], path: Path, options: Options
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write a package with a model for all sizes and one for each entry.

    Return the namespaces of its custom operators, and notes.
    """
    graph = _graph(program, options)
    settings = _settings(program.part_of or graph, options)
    ops = custom_ops.of_exported(graph)
    if not program.keeps_state:
        graphs = {MODEL: graph} | _package_entries.graphs(graph, program, entries)
        if unfrozen := _write_somehow(graphs, path, settings, options):
            return ops, unfrozen
        dynamic = {name: one for name, one in graphs.items() if one.range_constraints and _convolves(one)}
        doubtful = settings["freezing"] and bool(dynamic)
        # Those in other precisions differ by more than rounding in float32.
        doubtful &= options.precision in ("fp32", "tf32", *SMALL_WEIGHTS)
        if not doubtful or program.part_of or _asks_for("freezing", options) or _agree(path, dynamic, options):
            return ops, ()
        _write(graphs, path, settings | {"freezing": False})
        return ops, ("weights not frozen, because the frozen package is wrong or fails",)
    how = "frozen" if settings["freezing"] else "folded"
    failed: Exception | None = None
    with _inductor.unfolded(carrying.BUFFER):
        try:
            _write({MODEL: graph}, path, settings)
        except Exception as error:  # some passes treat the state as weights, and fail
            failed = error
        if not failed and _keeps_state(path, graph, program, options):
            return ops, ()
        try:
            _write({MODEL: graph}, path, settings | {"freezing": False, "joint_graph_constant_folding": False})
        except Exception as error:
            raise failed or error from None
    reason = (
        f"that fails: {causes.shorten(source_lines.summary(failed))}" if failed else f"the state would be {how} too"
    )
    return ops, (f"weights not {how}, because {reason}",)


def _keeps_state(path: Path, graph: torch.export.ExportedProgram, program: Program, options: Options) -> bool:
    """Return whether a package with state runs and gives its program's outputs, call after call."""
    try:
        return carrying.repeats(_packages.Package(path, MODEL, options.device).run, graph, program.example)
    except Exception:  # whatever a package raises
        return False


def _asks_for(name: str, options: Options) -> bool:
    return any(one.partition("=")[0] == name for one in options.inductor)


def _agree(path: Path, graphs: Mapping[str, torch.export.ExportedProgram], options: Options) -> bool:
    """Return whether each model of a package runs and gives its program's outputs at the example."""
    try:
        packages = _packages.open_models(path, (MODEL, *graphs), options.device)
        return all(
            carrying.repeats(packages[name].run, graph, graph.example_inputs[0], calls=1)
            for name, graph in graphs.items()
        )
    except Exception:  # whatever a package raises
        return False


def _write_somehow(
    graphs: Mapping[str, torch.export.ExportedProgram], path: Path, settings: dict[str, Any], options: Options
) -> tuple[str, ...]:
    """Write a package like `_write`, or without freezing if a pass of inductor fails to freeze. Return notes."""
    try:
        _write(graphs, path, settings)
    except Exception as error:
        if not settings["freezing"] or _asks_for("freezing", options) or not _is_inductors(error):
            raise
        try:
            _write(graphs, path, settings | {"freezing": False})
        except Exception:  # it also fails without freezing
            raise error from error.__cause__
        return (f"weights not frozen, because freezing fails: {causes.shorten(source_lines.summary(error))}",)
    return ()


def _is_inductors(error: Exception) -> bool:
    """Return whether inductor itself failed: neither exporter nor the machine, nor the C++ compiler."""
    cause = causes.of(error)
    return not isinstance(error, (ExporterError, OSError, MemoryError)) and (
        cause is None or cause.name not in ELSEWHERE
    )


def _write(graphs: Mapping[str, torch.export.ExportedProgram], path: Path, settings: dict[str, Any]) -> None:
    """Write a package with a model for each program, by its name."""
    import torch
    from torch._inductor.package.package import package_aoti

    files: dict[str, Any] = {}
    for name, graph in graphs.items():
        module, (args, kwargs) = graph.module(check_guards=False), graph.example_inputs
        # Inductor freezes only with gradients off.
        with torch.set_grad_enabled(not settings["freezing"]), _weights.indexed():
            files[name] = torch._inductor.aot_compile(
                module, args, kwargs, options=settings | {"aot_inductor.package": True}
            )
    package_aoti(str(path), _package_entries.share(files))
    if len(graphs) == 1 and _steps_inductor.SETTINGS.keys() & settings.keys():
        _steps_inductor.save(path, next(iter(graphs.values())).graph)


def load(path: Path, options: Options) -> Loaded:
    """Load the package without importing torch's compiler, which would take seconds.

    Raise ArtifactError if the package cannot run here.
    """
    promise = read_contract(path)
    _check(promise, path, options.device)
    symbol = contract.specialized(promise)
    choices = promise.symbols[symbol].choices if symbol else ()
    names = tuple(_specialized.name(size) for size in choices)
    names = names or (MODEL, *map(_package_entries.name, promise.entries))
    try:
        packages = _packages.open_models(path, names, options.device)
    except RuntimeError as error:
        raise ArtifactError(
            f"{path} is not an AOTInductor package that runs here: {source_lines.message(error)}",
            "export it again on this machine",
        ) from error
    first = packages[names[0]]
    run: Run = first.run
    if symbol:
        run = _choosing(promise, symbol, packages)
    elif promise.entries:
        run = _package_entries.choose(promise, {name: package.run for name, package in packages.items()})
    reset = _resetting(first, promise, options.device) if contract.keeps_state(promise) else tuple
    profile = functools.partial(_steps_inductor.record, path, run, options.device)
    return Loaded(run, reset=reset, takes=first.inputs(), profile=profile)


def _choosing(promise: Contract, symbol: str, packages: Mapping[str, _packages.Package]) -> Run:
    """Return a function that runs the model for the size of its inputs."""
    which, axis = contract.selector(promise)

    def run(inputs: Tensors) -> Tensors:
        size = inputs[which].shape[axis]
        if _specialized.name(size) not in packages:
            raise ContractError(f"{symbol} is {size}, the contract allows {promise.symbols[symbol]}")
        return packages[_specialized.name(size)].run(inputs)

    return run


def _resetting(model: _packages.Package, promise: Contract, device: str) -> Callable[[], None]:
    """Return a function that restores the package's initial state."""
    import torch

    initial = enumerate(carrying.fixed_initial(promise))
    constants = {carrying.name(index): tensor.to(device) for index, tensor in initial}

    def reset() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)  # calls may still be running, on any stream
        model.set_constants(constants)

    return reset


def _check(promise: Contract, path: Path, device: str) -> None:
    """Raise ArtifactError for a package that cannot run here; warn about one that may not run."""
    import torch

    if promise.build is None:  # from before builds were recorded
        return
    on_gpu = promise.build.capability and device != "cpu"
    machine_code.require(promise.build, path, torch.cuda.get_device_capability(device) if on_gpu else None)
    if newer := machine_code.newer(promise, torch.version.cuda or ""):
        warnings.warn(f"{path} was {newer}", stacklevel=3)


def live(program: Program, options: Options) -> Loaded:
    """Compile the eager module with torch.compile, in a mode of inductor or with another backend.

    The first call compiles. Sizes with a range in the contract are dynamic from the first call on; without any, all
    sizes are static.
    """
    import torch

    # Above the limit, torch would silently fall back to eager, and the row would not measure torch.compile.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    open_axes = [_open_axes(spec, program.contract) for spec in program.function.inputs]
    backend, mode = _backend_and_mode(options.variant)
    if backend == "inductor" and options.device == "cpu":
        _require_usable_compiler()
    dynamic = None if any(open_axes) else False
    how: dict[str, Any] = {"backend": backend, "mode": mode}
    if options.inductor:
        how = {"backend": backend, "options": _live_settings(options, mode)}
    compiled = torch.compile(program.module, fullgraph=options.fullgraph, dynamic=dynamic, **how)
    overwrites = options.device != "cpu" and options.variant in CUDA_GRAPHS
    marked: Tensors = ()

    made = _steps_inductor.Instrumented()

    def run(inputs: Tensors) -> Tensors:
        nonlocal marked
        if inputs is not marked:  # benchmarks pass the same inputs again, so mark them once
            for tensor, axes in zip(inputs, open_axes, strict=False):
                torch._dynamo.maybe_mark_dynamic(tensor, axes)
            marked = inputs
        watching = options.profiled and not made.information  # that costs time at each call
        with torch.no_grad(), made.watching() if watching else contextlib.nullcontext():
            outputs = compiled(*inputs)
        # With CUDA graphs, the next call overwrites these outputs.
        return tuple(t.clone() for t in outputs) if overwrites else tuple(outputs)

    carried = carrying.Carried(run, program.contract)
    profile = functools.partial(_steps_inductor.record, made, carried, options.device)
    kept = options.keep_float if options.precision in ("bf16", "fp16") else ()
    told = (*_changed(options), *((f"float32 in {', '.join(kept)}",) if kept else ()))
    return Loaded(carried, lambda: "", lambda: told + _breaks_and_recompilations(), carried.reset, profile=profile)


def _live_settings(options: Options, mode: str | None) -> dict[str, Any]:
    """Return the settings of a mode of inductor with the user's; torch.compile takes only one of mode and settings."""
    import torch

    if mode is None:
        raise ExportError(f"--inductor does not apply to compile:{options.variant}", "choose compile:default")
    return torch._inductor.list_mode_options(mode) | _inductor.parse(options.inductor)


def _open_axes(spec: TensorSpec, promised: Contract) -> list[int]:
    """Return the axes that depend on a symbol with a range; a symbol with `choices` is compiled once for each size."""
    opened = {name for name, bounds in promised.symbols.items() if len(bounds.sizes) > 1 and not bounds.choices}
    names = {axis: Expression.parse(dim).names for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
    return [axis for axis, used in names.items() if opened.intersection(used)]


def _backend_and_mode(setting: str) -> tuple[str, str | None]:
    """Return torch.compile's arguments for the setting. Raise ExportError for an unknown backend."""
    import torch

    if setting in MODES:
        return "inductor", setting
    name = setting.removeprefix("backend=")
    if name not in torch._dynamo.list_backends(exclude_tags=()):
        known = ", ".join(sorted({*torch._dynamo.list_backends(), *BACKENDS}))
        raise ExportError(
            f"torch.compile has no backend {name!r}", f"available: {known}; other packages may register more"
        )
    return name, None


def candidates(options: Options) -> Iterator[Candidate]:
    """Yield what --tune tries for a package."""
    on_cpu = options.device == "cpu"
    if on_cpu and options.precision != "int8":
        yield from _candidates.unset(options, "cpp.enable_concat_linear=True")
        yield from _candidates.unset(options, "max_autotune_gemm=True", "max_autotune_gemm_backends=CPP,ATEN")
    if on_cpu:
        yield Candidate(Choice("huge_pages", ("True",)), at_load=True, advice=True, native=True)
    else:
        yield from _candidates.unset(options, "max_autotune_gemm=True")
    yield from _candidates.fewer_threads(options)


def examine(probed: str) -> tuple[Part, ...]:
    """Check that there is a C++ compiler, and the program that torch.compile calls to name precompiled headers."""
    if fault := environment.compiler_fault():
        return (Part("bad", "C++ compiler", f"CXX: {fault}", WRONG_CXX),)
    compiler = environment.compiler()
    if compiler is None:
        return (Part("bad", "C++ compiler", "none, which the target compile needs", COMPILER),)
    found = Part("ok", "C++ compiler", compiler)
    if shutil.which("openssl"):
        return (found,)
    missing = "none, which torch.compile needs on a CPU; packages do not"
    return found, Part("note", "openssl", missing, "install openssl (Debian: apt install openssl)")


def _breaks_and_recompilations() -> tuple[str, ...]:
    """Return notes on the graph breaks and recompilations in this process so far."""
    from torch._dynamo import utils

    breaks = sum(utils.counters["graph_break"].values())
    again = sum(bool(one.recompile_reason) for one in utils.get_compilation_metrics())
    found = ((breaks, "graph break"), (again, "recompilation"))
    told = " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for count, what in found if count)
    return (f"{told} in all cases together; `exporter explain` names the lines",) if told else ()
