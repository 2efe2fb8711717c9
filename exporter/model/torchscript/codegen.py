"""Loading and writing TorchScript."""

from __future__ import annotations

import builtins
import keyword
import math
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core.errors import ArtifactError, ExportError
from exporter.core.parity_records import Warned

if TYPE_CHECKING:
    import torch

    from exporter.model.tensors import Tensors


SHADOWED = {"filter", "format", "hash", "id", "input", "object", "type"}  # builtins that generated code does not call
RESERVED = (
    frozenset(
        {"self", "torch", "device", "List", "Tuple", "Dict", "Optional", "Tensor", *keyword.kwlist, *dir(builtins)}
    )
    - SHADOWED
)  # not allowed as arguments: generated code uses these names


def load(path: Path, device: str) -> Script:
    """Load a `.pt`. Raises ArtifactError if the file is not TorchScript."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            module = torch.jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(f"{path} is not TorchScript: {error}", "export it again") from error
    return Script(module.eval())


class Script:
    """A loaded TorchScript module as a function of tensors."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._module = module

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the outputs as a flat tuple."""
        import torch

        with torch.no_grad():
            output = self._module(*inputs)
        return output if isinstance(output, tuple) else tuple(output) if isinstance(output, list) else (output,)

    @property
    def graph(self) -> Any:
        """Return the graph of torch, with every method inlined."""
        module: Any = self._module
        return module.inlined_graph

    @property
    def takes(self) -> int:
        """Return the number of input tensors."""
        forward: Any = self._module.forward
        return len(forward.schema.arguments) - 1  # without self

    def reset(self) -> None:
        """Restore the initial state, if the module has state."""
        if hasattr(self._module, "reset"):
            self._module.reset()


def tracer_warnings(caught: Sequence[warnings.WarningMessage]) -> tuple[Warned, ...]:
    """Return distinct TracerWarnings with their source lines. They prove nothing by themselves; the golden does."""
    from torch.jit._trace import TracerWarning

    seen = dict.fromkeys(
        Warned(str(w.message).split(".")[0], f"{w.filename}:{w.lineno}")
        for w in caught
        if issubclass(w.category, TracerWarning)
    )
    return tuple(seen)


def define(module: torch.nn.Module, source: str) -> torch.jit.ScriptModule:
    """Return a script module with the tensors and submodules of `module` and the forward that `source` defines.

    Raises RuntimeError, with the line of the source, if TorchScript rejects it.
    """
    import torch

    # TorchScript gives modules of the same class and structure one type, and a type has only one forward.
    module.__class__ = type("Exported", (torch.nn.Module,), {})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".torch\.jit")  # deprecation warnings, whose category depends on the version
        scripted: torch.jit.ScriptModule = torch.jit.script(module.eval())
    scripted.define(source)
    return scripted


def arguments(names: Sequence[str]) -> list[str]:
    """Return argument names for inputs of these names, with invalid characters and reserved words replaced."""
    made: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        made.append(unused(f"_{plain}" if plain[:1].isdigit() or plain in RESERVED else plain, made))
    return made


def unused(wanted: str, taken: Collection[str]) -> str:
    """Append underscores to the name until it is not taken."""
    while wanted in taken:
        wanted += "_"
    return wanted


def name_arguments(traced: torch.jit.ScriptModule, names: Sequence[str]) -> None:
    """Name the arguments of a trace's forward, for which the tracer has no names if forward takes *tensors."""
    _, *values = traced.graph.inputs()
    for value, name in zip(values, arguments(names), strict=True):
        value.setDebugName(name)


def attribute(name: str) -> str:
    """Return the expression for a dotted name: `getattr(self.layers, "0").weight` for `layers.0.weight`."""
    expression = "self"
    for part in name.split("."):
        plain = part.isidentifier() and not keyword.iskeyword(part)
        expression = f"{expression}.{part}" if plain else f'getattr({expression}, "{part}")'
    return expression


def number_tensor(expression: str, kind: str) -> str:
    """Return an expression that makes a number of type `kind` a zero-dimensional tensor of its dtype in contracts."""
    import torch

    dtype = {"bool": torch.bool, "int": torch.int64, "float": torch.get_default_dtype()}[kind]
    return f"torch.ops.aten.scalar_tensor({expression}, dtype={dtype})"


def literal(value: Any, kind: Any, leaf: Callable[[Any, Any], str | None] = lambda value, kind: None) -> str:
    """Return `value` as an expression of the TorchScript type `kind` (a torch._C.JitType).

    `leaf` is called first, for values that are not constants. Raises ExportError if the value has no literal.
    """
    said = leaf(value, kind)
    if said is not None or value is None:
        return said or "None"
    if kind.kind() == "OptionalType":
        return literal(value, kind.getElementType(), leaf)
    if isinstance(value, dict) and kind.kind() == "DictType":
        items = [f"{key!r}: {literal(item, kind.getValueType(), leaf)}" for key, item in value.items()]
        return f"torch.jit.annotate({kind.annotation_str}, {{{', '.join(items)}}})"
    if isinstance(value, tuple) and kind.kind() == "TupleType":
        return f"({''.join(literal(item, k, leaf) + ', ' for item, k in zip(value, kind.elements(), strict=True))})"
    if isinstance(value, (list, tuple)) and kind.kind() == "ListType":
        items = [literal(item, kind.getElementType(), leaf) for item in value]
        return f"torch.jit.annotate({kind.annotation_str}, [{', '.join(items)}])"
    return _constant(value, kind.kind())


def _constant(value: Any, kind: str) -> str:
    import torch

    if isinstance(value, bool) and kind in ("IntType", "FloatType"):
        value = int(value)
    if isinstance(value, int) and kind == "FloatType":
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, complex):
        return f"complex({_constant(value.real, kind)}, {_constant(value.imag, kind)})"
    if value == -(2**63) and isinstance(value, int):
        return "(-9223372036854775807 - 1)"  # the sign is not part of a literal
    if isinstance(value, torch.device):
        return f"torch.device('{value}')"
    if isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    raise ExportError(f"TorchScript has no literal for {type(value).__name__}")
