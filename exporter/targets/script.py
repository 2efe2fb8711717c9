"""`torch.jit.script`: natively where it works, else from the exported graph."""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter import contract, entries, operators, places, torchscript
from exporter.errors import ExportError
from exporter.serialization import to_json
from exporter.targets import Exported, Loaded, Options

if TYPE_CHECKING:
    import torch

    from exporter.capture import Program
    from exporter.flattening import Tensors

artifact = "script.pt"
variants = ("",)
precisions = ("fp32", "tf32", "bf16", "fp16")
requires = ("torch",)
native = True
needs_program = True
needs_module = True
cost = 2
read_contract = contract.read_zip


def export(program: Program, path: Path, options: Options) -> Exported:
    """Script the module; where TorchScript cannot read its source, or reads it otherwise, script the exported graph.

    Either way the artifact has run once, from its file.
    """
    if options.precision in ("bf16", "fp16"):  # the casts are no part of the model's source
        ops, frozen = _bridged(program, path, ExportError("its source is not of this precision"))
        return Exported(("through the exported graph",), ops=ops)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecation, and of what torchvision's detectors return when scripted
        try:
            way, (ops, frozen) = "scripted natively", _native(program, path)
        except Exception as error:  # the compiler of TorchScript raises whatever it meets
            path.unlink(missing_ok=True)
            ops, frozen = _bridged(program, path, error)
            way = f"through the exported graph; torch.jit.script alone fails: {_first_line(error)}"
    return Exported(notes=(way,) if frozen else (way, "not frozen, for the frozen module is wrong or fails"), ops=ops)


def _native(program: Program, path: Path) -> tuple[tuple[str, ...], bool]:
    """Write the module scripted natively; returns what _write does.

    ExportError when it gives something else than eager at the example: code may ask whether it is being scripted.
    """
    import torch

    from exporter import shell
    from exporter.flattening import output_leaves

    flat: Any = program.module
    scripted = torch.jit.script(flat.model)
    eager = copy.deepcopy(flat.model, {id(p): p for p in flat.model.parameters()})  # a run may change buffers
    args, kwargs = flat.example.rebuild(_inputs(program))
    with _seeded():
        output = eager(*args, **kwargs)
    scripted = shell.wrap(scripted, flat.example.rebuild, len(program.contract.inputs), output)
    names, wanted = output_leaves(output)

    def differences(outputs: Tensors) -> str:
        if len(outputs) != len(wanted):
            return f"it gives {len(outputs)} tensors, eager {len(wanted)}"
        different = [name for name, got, want in zip(names, outputs, wanted, strict=True) if not _agree(got, want)]
        return f"{', '.join(different)} at the example is not what eager gives" if different else ""

    return _write(scripted, program, path, differences)


def _inputs(program: Program) -> Tensors:
    """The example, copied, for a run may change it; an entry's, where the artifact takes no other sizes."""
    example = next(iter(program.entries.values()), program).example
    return tuple(tensor.clone() for tensor in example)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """The same random numbers for whoever runs, and no gradients."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        yield


def _agree(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two outputs are near enough to be of the same computation; the golden judges how near they are."""
    import torch

    from exporter.parity import TOLERANCES

    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not want.is_floating_point() and not want.is_complex():
        return torch.equal(got, want)
    tolerance = TOLERANCES.get(str(want.dtype).removeprefix("torch."), TOLERANCES["float32"])
    largest = float(want[want.isfinite()].abs().max()) if want.isfinite().any() else 0.0
    return torch.allclose(got, want, rtol=0.0, atol=tolerance.atol + tolerance.rtol * largest, equal_nan=True)


def _write(
    module: torch.jit.ScriptModule, program: Program, path: Path, differences: Callable[[Tensors], str] = lambda _: ""
) -> tuple[tuple[str, ...], bool]:
    """Write the module, frozen where that runs and gives the right outputs at the example, else as it is.

    Returns its operators' namespaces and whether it is frozen. ExportError says what is different, RuntimeError what
    does not run.
    """
    import torch

    def write(made: torch.jit.ScriptModule) -> tuple[str, ...]:
        ops = operators.of_script(made)
        promise = to_json(replace(program.contract, ops=ops))
        torch.jit.save(made, str(path), _extra_files={"contract.json": promise})
        with _seeded():
            wrong = differences(torchscript.load(path, program.device)(_inputs(program)))
        if wrong:
            raise ExportError(wrong)
        return ops

    try:
        return write(torch.jit.freeze(module.eval())), True
    except (ExportError, RuntimeError):
        return write(module.eval()), False


def _bridged(program: Program, path: Path, why: Exception) -> tuple[tuple[str, ...], bool]:
    """Write the exported graph as TorchScript; returns what _write does. ExportError names both failures."""
    from exporter import bridge

    try:
        if program.entries:
            parts = {size: bridge.from_exported(entry.exported) for size, entry in program.entries.items()}
            return _write(entries.script_module(parts, program.contract), program, path)
        return _write(bridge.from_exported(program.exported), program, path)
    except (ExportError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        remedy = error.remedy if isinstance(error, ExportError) else ""
        both = f"{places.message(error)}; torch.jit.script: {places.located(_first_line(why), why)}"
        raise ExportError(both, remedy) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r" at 0x[0-9a-f]+", "", lines[0])[:200] if lines else type(error).__name__


def load(path: Path, options: Options) -> Loaded:
    """torch.jit.load, as any user would."""
    return Loaded(torchscript.load(path, options.device))
