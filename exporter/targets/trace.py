"""`torch.jit.trace`: the operations of one run as TorchScript, frozen."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.core import contract_files
from exporter.core.contract_records import PRECISIONS
from exporter.core.errors import ExportError
from exporter.core.json_codec import to_json
from exporter.core.precisions import SMALL_WEIGHTS
from exporter.core.tuning_records import Choice
from exporter.model import custom_ops
from exporter.model.state import carrying
from exporter.model.torchscript import codegen
from exporter.targets import (
    GB,
    Candidate,
    Exported,
    Loaded,
    Need,
    Options,
    TritonBackend,
    _candidates,
    _int8,
    _layout,
    _specialized,
    _steps_torchscript,
    _stored_products,
)

if TYPE_CHECKING:
    import torch

    from exporter.model.capture import Program

artifact = "trace.pt"
variants = ("",)
precisions = PRECISIONS
requires = ("torch",)
native = True
needs_program = False
records_calls = True
assumes = ("graph",)  # does not apply if `export` reports that the trace accepts the whole contract
cost = 1
also_called = ("torchscript", "jit")
before_python = (3, 14)  # TorchScript does not support it
question = "torch.jit.trace: is it right at other sizes and values?"
portability = 3
export_need, session_need = Need(1.2, 0.8 * GB), Need(1.2, 1.5 * GB)
triton = TritonBackend("pytorch", "pytorch_libtorch", "model.pt", operators=("torchvision",))
read_contract = contract_files.read_zip


def export(program: Program, path: Path, options: Options) -> Exported:
    """Trace the eager module at the capture sizes.

    Branches and Python numbers are baked in; the golden shows whether that is wrong at other sizes and values. Raises
    ExportError if they come from the state, which may have other values only after more calls than the golden makes.
    """
    import torch

    from exporter.model.torchscript import debug_info
    from exporter.targets._tracing import Branches, warned

    branches = Branches(len(program.contract.state.tensors) if program.contract.state else 0)
    with warned() as caught, torch.no_grad():
        module, notes = _module(program, options)
        packed = _stored_products.scripted(module) if options.precision in SMALL_WEIGHTS else contextlib.nullcontext()
        with branches, packed:
            parts = {size: _trace(entry, module) for size, entry in program.entries.items()}
            traced = _specialized.script_module(parts, program.function) if parts else _trace(program, module)
        branches.require_no_state()
        if not program.entries:
            _require_no_value(program, module, traced, branches.read(len(program.example)))
            _require_one_side(program, module, traced, branches.branches(len(program.example)))
        frozen = _frozen(traced.eval())
        whole = _is_right_outside(program, module, traced)
        taken = (whole and program.whole) or program.contract
        if program.keeps_state:
            frozen = carrying.script_module(frozen, taken, program.device)
        ops = custom_ops.of_script(frozen)
        promise = to_json(replace(taken, ops=ops))
        debug_info.save(frozen, path, {"contract.json": promise})
    return Exported((*notes, *branches.notes()), codegen.tracer_warnings(caught), ops=ops, whole=whole)


def _frozen(traced: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Freeze a module. If convolutions cannot be folded, as on a GPU if a number scales the output, optimize less."""
    import torch

    from exporter.model.torchscript import host_numbers

    kept = _stored_products.packed_in(traced)
    try:
        frozen: torch.jit.ScriptModule = torch.jit.freeze(traced, preserved_attrs=kept)
    except RuntimeError as error:
        if "frozen_conv_folding" not in str(error):
            raise
        frozen = torch.jit.freeze(traced, preserved_attrs=kept, optimize_numerics=False)
    host_numbers.keep(frozen)
    return frozen


def _is_right_outside(program: Program, module: torch.nn.Module, traced: torch.jit.ScriptModule) -> bool:
    """Return whether the trace agrees with the module at sizes at which the exported program is wrong."""
    from exporter.model import mixed_dtypes

    for inputs in program.outside():
        try:
            outputs = traced(*(t.clone() for t in inputs))
        except Exception:  # TorchScript may raise anything at untested sizes
            return False
        with mixed_dtypes.agreeing(module, program.example):
            expected = module(*inputs)
        if not all(map(carrying.agree, outputs, expected)):
            return False
    return True


def _require_no_value(
    program: Program, module: torch.nn.Module, traced: torch.jit.ScriptModule, read: dict[int, str]
) -> None:
    """Raise ExportError if the trace keeps the value of an input, and eager computes something else with another."""
    from exporter.model import mixed_dtypes
    from exporter.targets import _values_read

    with mixed_dtypes.agreeing(module, program.example):
        kept = _values_read.kept(module, traced, program.example, read)
    if kept is not None:
        at, _ = kept
        name = program.function.inputs[at].name
        raise ExportError(
            f"Python reads the value of {name} ({read[at]}), and the trace keeps that of the example: with another "
            "value, eager returns something else",
            "give a number instead of a tensor if it never changes; else compute with tensors (torch.where, "
            "index_select), or ship script if it can compile the code",
        )


def _require_one_side(
    program: Program, module: torch.nn.Module, traced: torch.jit.ScriptModule, branches: dict[int, str]
) -> None:
    """Raise ExportError if eager takes the other side of a branch for other values, and the trace is wrong there."""
    from exporter.model import mixed_dtypes
    from exporter.targets import _values_read

    if not branches:
        return
    with mixed_dtypes.agreeing(module, program.example):
        wrong = _values_read.disagrees_for_drawn(module, traced, [program.example, *_least(program)], branches)
    if wrong:
        names = ", ".join(program.function.inputs[at].name for at in sorted(branches))
        lines = ", ".join(dict.fromkeys(branches.values()))
        raise ExportError(
            f"a branch depends on values ({lines}), and the trace keeps the side that the example takes: with other "
            f"values of {names}, eager returns something else",
            "write the branch with torch.where (`exporter repair` may find a patch), or ship script if it can compile "
            "the code",
        )


def _least(program: Program) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield inputs of the smallest sizes, if the recipe makes them; `all` is more often true for few rows."""
    if program.make_at is not None:
        with contextlib.suppress(Exception):  # the recipe's code may raise anything
            yield program.make_at({name: allowed.sizes[0] for name, allowed in program.contract.symbols.items()})


def _module(program: Program, options: Options) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """Return the module to trace, and notes for the row."""
    if options.channels_last:
        if options.precision == "int8":
            raise ExportError("--channels-last does not apply to int8", "leave it out, or choose another precision")
        return _layout.channels_last(program.module), ("channels-last",)
    if options.precision != "int8":
        return program.module, ()
    module, note = _int8.dynamic(program.module, options.keep_float)
    return module, (note,)


def _trace(program: Program, module: torch.nn.Module) -> torch.jit.ScriptModule:
    from exporter.targets import _tracing

    traced = _tracing.trace(module, program.example)
    codegen.name_arguments(traced, [spec.name for spec in program.function.inputs])
    return traced


def candidates(options: Options) -> Iterator[Candidate]:
    """Yield what --tune tries."""
    if not options.channels_last and options.precision != "int8":
        yield Candidate(Choice("channels_last", ("True",)))
    yield from _candidates.fewer_threads(options)


def load(path: Path, options: Options) -> Loaded:
    """Load the artifact with torch.jit.load, as any user would."""
    from exporter.model import own_outputs

    script = codegen.load(path, options.device)
    profile = functools.partial(_steps_torchscript.record, script, options.device)
    own = own_outputs.of_torchscript
    return Loaded(script, reset=script.reset, takes=script.takes, profile=profile, own=own)
