"""`torch.jit.script`, natively if that works, otherwise from the exported graph."""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import contract_files, source_lines
from exporter.core.errors import ExportError
from exporter.core.json_codec import to_json
from exporter.model import custom_ops
from exporter.model.state import carrying
from exporter.model.torchscript import codegen
from exporter.targets import GB, Exported, Loaded, Need, Options, TritonBackend, _specialized, _steps_torchscript

if TYPE_CHECKING:
    import torch

    from exporter.core.contract_records import Contract
    from exporter.model.capture import Program
    from exporter.model.tensors import Tensors

artifact = "script.pt"
variants = ("",)
precisions = ("fp32", "tf32", "bf16", "fp16")
requires = ("torch",)
native = True
needs_program = True
assumes = ("graph",)
needs_module = True
cost = 2
also_called = ("torchscript", "jit")
before_python = (3, 14)  # TorchScript does not support it
question = "torch.jit.script: can it compile the code?"
portability = 2
export_need, session_need = Need(1.5, 1.0 * GB), Need(1.2, 1.5 * GB)
triton = TritonBackend("pytorch", "pytorch_libtorch", "model.pt", operators=("torchvision",))
read_contract = contract_files.read_zip


def export(program: Program, path: Path, options: Options) -> Exported:
    """Script the module; if that fails or its outputs are wrong, write the exported graph as TorchScript.

    The written file is loaded and run once, in either case.
    """
    other = "its source computes in another precision" if options.precision in ("bf16", "fp16") else ""
    if other or program.function.state is not None:
        other = other or "native scripting would keep the state differently"
        ops, frozen = _bridged(program, path, ExportError(other))
        return Exported(("through the exported graph", *_unfrozen(frozen)), ops=ops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation, and the return type of torchvision's scripted detectors
        try:
            whole, (ops, frozen) = True, _native(program, path)
            way = "already TorchScript" if _is_torchscript(program) else "scripted natively"
        except Exception as error:  # the TorchScript compiler may raise anything
            path.unlink(missing_ok=True)
            whole, (ops, frozen) = False, _bridged(program, path, error)
            way = f"through the exported graph; {source_lines.own(error) or _why(error)}"
    return Exported((way, *_unfrozen(frozen)), ops=ops, whole=whole)


def _unfrozen(frozen: bool) -> tuple[str, ...]:
    return () if frozen else ("not frozen, because the frozen module is wrong or fails",)


def _native(program: Program, path: Path) -> tuple[tuple[str, ...], bool]:
    """Script the module natively and write it; return what `_write` returns.

    Raise ExportError if its outputs at the example differ from eager's: code may check torch.jit.is_scripting().
    """

    from exporter.model.flattening import output_leaves
    from exporter.model.torchscript import typed_wrapper

    flat: Any = program.module
    eager, own = (_copied(flat.model) for _ in range(2))  # a run may change buffers, scripting may change submodules
    scripted = own.program() if _is_torchscript(program) else _scripted(own)
    args, kwargs = flat.example.rebuild(_inputs(program))
    with _seeded():
        output = eager(*args, **kwargs)
    inputs = codegen.arguments([spec.name for spec in program.contract.inputs])
    scripted = typed_wrapper.wrap(scripted, flat.example.rebuild, inputs, output, flat.leave_out)
    names, wanted = output_leaves(output, flat.leave_out)

    def differences(outputs: Tensors) -> str:
        if len(outputs) != len(wanted):
            return f"it returns {len(outputs)} tensors, eager returns {len(wanted)}"
        triples = zip(names, outputs, wanted, strict=True)
        different = [name for name, got, want in triples if not carrying.agree(got, want)]
        return f"outputs at the example differ from eager's: {', '.join(different)}" if different else ""

    return _write(scripted, program, path, program.whole or program.contract, differences)


def _scripted(model: Any) -> Any:
    """Script a model. Raise ExportError if it divides by a fraction as TorchScript does and Python does not."""
    import torch

    from exporter.model.sizes_in_calls import divides_exactly

    scripted = torch.jit.script(model)
    graph = scripted.inlined_graph  # its nodes live no longer than it
    for node in graph.findAllNodes("aten::floordiv", recurse=True):
        divisor = node.inputsAt(1)
        known = divisor.toIValue()
        if divisor.type().kind() == "FloatType" and (known is None or not divides_exactly(known)):
            place = source_lines.place(node.sourceRange())
            raise ExportError(f"TorchScript's // of fractions differs from Python's ({place})")
    return scripted


def _is_torchscript(program: Program) -> bool:
    """Return whether the model already is a TorchScript program with its original names."""
    from exporter.model.torchscript.interpreter import Interpreter

    flat: Any = program.module
    return isinstance(flat.model, Interpreter) and not flat.model.renamed


def _copied(model: Any) -> Any:
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def _inputs(program: Program) -> Tensors:
    """Return a copy of the example, which a run may change; if the artifact has entries, the first one's example."""
    example = next(iter(program.entries.values()), program).example
    return tuple(tensor.clone() for tensor in example)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Run the block with a fixed seed and without gradients."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        yield


def _write(
    module: torch.jit.ScriptModule,
    program: Program,
    path: Path,
    promised: Contract,
    differences: Callable[[Tensors], str] = lambda _: "",
) -> tuple[tuple[str, ...], bool]:
    """Write the module, frozen if it then runs and gives the right outputs at the example, unfrozen otherwise.

    Return the namespaces of its custom operators and whether it is frozen. Raise ExportError if the outputs differ,
    RuntimeError if it does not run.
    """
    import torch

    from exporter.model.torchscript import debug_info

    def write(made: torch.jit.ScriptModule) -> tuple[str, ...]:
        if program.keeps_state:
            made = carrying.script_module(made, program.contract, program.device)
        ops = custom_ops.of_script(made)
        promise = to_json(replace(promised, ops=ops))
        debug_info.save(made, path, {"contract.json": promise})
        with _seeded():
            inputs = _inputs(program)[: len(program.contract.inputs)]
            wrong = differences(codegen.load(path, program.device)(inputs))
        if wrong:
            raise ExportError(wrong)
        return ops

    try:
        return write(torch.jit.freeze(module.eval())), True
    except (ExportError, RuntimeError):
        return write(module.eval()), False


def _bridged(program: Program, path: Path, why: Exception) -> tuple[tuple[str, ...], bool]:
    """Write the exported graph as TorchScript; return what `_write` returns. ExportError names both failures."""
    from exporter.model.torchscript import bridge

    names = [spec.name for spec in program.function.inputs]
    try:
        if program.entries:
            parts = {size: bridge.from_exported(entry.exported, names) for size, entry in program.entries.items()}
            return _write(_specialized.script_module(parts, program.function), program, path, program.contract)
        return _write(bridge.from_exported(program.exported, names), program, path, program.contract)
    except (ExportError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        remedy = error.remedy if isinstance(error, ExportError) else ""
        script = source_lines.own(why) or f"torch.jit.script: {source_lines.located(_first_line(why), why)}"
        both = f"{source_lines.message(error)}; {script}"
        raise ExportError(both, remedy, source_lines.blame(error) or source_lines.blame(why)) from error


def _why(error: Exception) -> str:
    return f"torch.jit.script fails: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return source_lines.without_addresses(lines[0])[:200].removesuffix(":") if lines else type(error).__name__


def load(path: Path, options: Options) -> Loaded:
    """Load the artifact with torch.jit.load, as any user would."""
    from exporter.model import own_outputs

    script = codegen.load(path, options.device)
    profile = functools.partial(_steps_torchscript.record, script, options.device)
    own = own_outputs.of_torchscript
    return Loaded(script, reset=script.reset, takes=script.takes, profile=profile, own=own)
