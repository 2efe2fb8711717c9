"""torch.jit.trace: find which of its warnings matter by running the traced module at other sizes and values.

Where the traced module is wrong, the model is traced again. A line matters if its Python numbers or its operations
differ between the two traces, whether torch warned about it or not.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.jit._trace import TracerWarning
from torch.overrides import TorchFunctionMode

from exporter.core import source_lines
from exporter.model.tensors import Tensors
from exporter.targets import _tracing, _values_read
from exporter.workers.explain import Finding
from exporter.workers.explain.subject import Subject

CONVERSIONS = ("__bool__", "__int__", "__float__", "__index__", "__len__", "__contains__", "item", "tolist", "numpy")
RETRACED = 3  # number of wrong probes at which the model is traced again
SHOWN = 8  # number of lines without a warning to report
REMEDY = "write it with tensor operations, or ship another target"


@dataclass
class Traced:
    """A traced module, with the TracerWarnings and the Python numbers of its trace, by source line."""

    module: Any = None
    warned: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, list[str]] = field(default_factory=dict)

    def operations(self) -> collections.Counter[tuple[str, str]]:
        """Count (line, operation with its constant) over all nodes."""
        return collections.Counter(_operations(self.module.inlined_graph))


class _Conversions(TorchFunctionMode):
    """Record the values that tensors were converted to in Python, by source line."""

    def __init__(self, numbers: dict[str, list[str]]) -> None:
        super().__init__()
        self._numbers = numbers

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", "") in CONVERSIONS:
            self._numbers.setdefault(source_lines.here(), []).append(repr(result)[:200])
        return result


def examine(subject: Subject) -> list[Finding]:
    """Report each line that torch.jit.trace warns about or makes constant, and whether it changes outputs."""
    traced = trace(subject.module, subject.example)
    probes = list(subject.probes())
    mutated = _mutated(subject)
    wrong = [(name, inputs, why) for name, inputs in probes if (why := _difference(subject.module, traced, inputs))]
    everything = range(len(subject.example))
    if kept := _values_read.kept(subject.module, traced.module, subject.example, everything):
        at, inputs = kept
        named = [spec.name for spec in subject.contract.inputs][at : at + 1] or ["the state"]
        wrong.append((f"another value of {named[0]}", inputs, "the values of an output differ from eager's"))
    if not wrong:
        harmless = [Finding("note", f"harmless here: {text}", line) for line, text in traced.warned.items()]
        return [Finding("ok", f"correct at all {len(probes)} sizes and values tried"), *harmless, *mutated]
    blamed = _blamed(subject, traced, [inputs for _, inputs, _ in wrong[:RETRACED]])
    findings = [Finding("bad", f"wrong at {_several([name for name, _, _ in wrong])}: {wrong[0][2]}", "", REMEDY)]
    for line, text in traced.warned.items():
        matters = Finding("bad", f"matters: {text}", line)
        findings.append(matters if line in blamed else Finding("note", f"harmless here: {text}", line))
    silent = [] if blamed & traced.warned.keys() else sorted(filter(None, blamed))[:SHOWN]
    baked = "matters: the trace keeps this line's result for the example"
    return [*findings, *(Finding("bad", baked, line) for line in silent), *mutated]


def _mutated(subject: Subject) -> list[Finding]:
    """Report inputs that the model changes in place, since only some artifacts change them for the caller."""
    given = tuple(t.clone() for t in subject.example)
    with torch.no_grad():
        subject.module(*given)
    names = [
        spec.name
        for spec, before, after in zip(subject.contract.inputs, subject.example, given, strict=False)  # then the state
        if not torch.equal(before.nan_to_num(), after.nan_to_num())
    ]
    text = "the code changes an input in place; callers of TorchScript see the change, callers of onnx do not"
    return [Finding("note", f"{name}: {text}", "", "clone() it first") for name in names]


def trace(module: torch.nn.Module, inputs: Tensors) -> Traced:
    """Trace like the target, and record warnings and conversions to Python."""
    traced = Traced()

    def hear(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, TracerWarning):
            traced.warned.setdefault(source_lines.here(), str(message).partition(". ")[0].partition(" might cause")[0])

    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        _Conversions(traced.numbers),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = hear
        traced.module = _tracing.trace(module, inputs)
    return traced


def _difference(module: torch.nn.Module, traced: Traced, inputs: Tensors) -> str:
    """Describe how a traced module's outputs differ from eager's by more than rounding; "" if they do not."""
    with torch.no_grad():
        expected = module(*(t.clone() for t in inputs))
        try:
            given = traced.module(*(t.clone() for t in inputs))
        except Exception as error:  # any error of TorchScript is a finding
            return source_lines.message(error)
    for one, other in zip(given if isinstance(given, tuple) else (given,), expected, strict=True):
        if one.shape != other.shape:
            return f"an output has shape {list(one.shape)}, eager's has {list(other.shape)}"
        if not torch.allclose(one.double(), other.double(), rtol=1e-2, atol=1e-3, equal_nan=True):
            return "the values of an output differ from eager's"
    return ""


def _blamed(subject: Subject, traced: Traced, probes: list[Tensors]) -> set[str]:
    """Return the lines at which a trace of a probe differs from the first trace."""
    blamed: set[str] = set()
    for inputs in probes:
        again = trace(subject.module, inputs)
        blamed |= {line for line in traced.numbers if again.numbers.get(line) != traced.numbers[line]}
        here, there = traced.operations(), again.operations()
        blamed |= {line for line, _ in (here - there) + (there - here)}
    return blamed


def _operations(block: Any) -> Iterator[tuple[str, str]]:
    for node in block.nodes():
        constant = ""
        if node.kind() == "prim::Constant":
            value = node.output().toIValue()
            constant = repr(value) if isinstance(value, (bool, int, float)) else ""
        yield source_lines.place(node.sourceRange()), f"{node.kind()} {constant}"
        for inner in node.blocks():
            yield from _operations(inner)


def _several(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
