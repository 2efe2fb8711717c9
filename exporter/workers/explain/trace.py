"""torch.jit.trace: which of its warnings matter, told by running the traced module at other sizes and values.

Where a traced module goes wrong, the model is traced again there. A line whose Python numbers differ between the two
traces is one that matters; so is a line that left other operations, with a warning or without.
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
from exporter.model import mixture_of_experts
from exporter.model.tensors import Tensors
from exporter.workers.explain import Finding
from exporter.workers.explain.subject import Subject

CONVERSIONS = ("__bool__", "__int__", "__float__", "__index__", "__len__", "__contains__", "item", "tolist", "numpy")
RETRACED = 3  # wrong probes at which the model is traced again
SHOWN = 8  # lines without a warning that are named
REMEDY = "write it with tensor operations; or ship another target"


@dataclass
class Traced:
    """A traced module, and what was baked on the way: TracerWarnings and Python numbers, by source line."""

    module: Any = None
    warned: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, list[str]] = field(default_factory=dict)

    def operations(self) -> collections.Counter[tuple[str, str]]:
        """(line, operation or constant) of every node."""
        return collections.Counter(_operations(self.module.inlined_graph))


class _Conversions(TorchFunctionMode):
    """Remembers what Python was told of tensors, by source line."""

    def __init__(self, numbers: dict[str, list[str]]) -> None:
        super().__init__()
        self._numbers = numbers

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", "") in CONVERSIONS:
            self._numbers.setdefault(source_lines.here(), []).append(repr(result)[:200])
        return result


def examine(subject: Subject) -> list[Finding]:
    """Each line that trace warns of or bakes, and whether that shows."""
    traced = trace(subject.module, subject.example)
    probes = list(subject.probes())
    mutated = _mutated(subject)
    wrong = [(name, inputs, why) for name, inputs in probes if (why := _difference(subject.module, traced, inputs))]
    if not wrong:
        harmless = [Finding("note", f"harmless here: {text}", line) for line, text in traced.warned.items()]
        return [Finding("ok", f"right at {len(probes)} sizes and values that were tried"), *harmless, *mutated]
    blamed = _blamed(subject, traced, [inputs for _, inputs, _ in wrong[:RETRACED]])
    findings = [Finding("bad", f"wrong at {_several([name for name, _, _ in wrong])}: {wrong[0][2]}", "", REMEDY)]
    for line, text in traced.warned.items():
        matters = Finding("bad", f"matters: {text}", line)
        findings.append(matters if line in blamed else Finding("note", f"harmless here: {text}", line))
    silent = [] if blamed & traced.warned.keys() else sorted(filter(None, blamed))[:SHOWN]
    baked = "matters: the trace holds what this line made of the example"
    return [*findings, *(Finding("bad", baked, line) for line in silent), *mutated]


def _mutated(subject: Subject) -> list[Finding]:
    """Inputs that the model changes, which the caller of some artifacts sees and that of others does not."""
    given = tuple(t.clone() for t in subject.example)
    with torch.no_grad():
        subject.module(*given)
    names = [
        spec.name
        for spec, before, after in zip(subject.contract.inputs, subject.example, given, strict=True)
        if not torch.equal(before.nan_to_num(), after.nan_to_num())
    ]
    text = "the code changes an input in place; its caller sees that of TorchScript, but not of onnx"
    return [Finding("note", f"{name}: {text}", "", "clone() it first") for name in names]


def trace(module: torch.nn.Module, inputs: Tensors) -> Traced:
    """Trace as the target does, and listen."""
    traced = Traced()

    def hear(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, TracerWarning):
            traced.warned.setdefault(source_lines.here(), str(message).partition(". ")[0].partition(" might cause")[0])

    with warnings.catch_warnings(), torch.no_grad(), _Conversions(traced.numbers), mixture_of_experts.dense(module):
        warnings.simplefilter("always")
        warnings.showwarning = hear
        traced.module = torch.jit.trace(module, inputs, strict=False, check_trace=False)
    return traced


def _difference(module: torch.nn.Module, traced: Traced, inputs: Tensors) -> str:
    """How a traced module's outputs differ from eager's by more than rounding; "" when they do not."""
    with torch.no_grad():
        expected = module(*(t.clone() for t in inputs))
        try:
            given = traced.module(*(t.clone() for t in inputs))
        except Exception as error:  # whatever TorchScript raises is the finding
            return source_lines.message(error)
    for one, other in zip(given if isinstance(given, tuple) else (given,), expected, strict=True):
        if one.shape != other.shape:
            return f"an output is {list(one.shape)}, eager's is {list(other.shape)}"
        if not torch.allclose(one.double(), other.double(), rtol=1e-2, atol=1e-3, equal_nan=True):
            return "an output has other values than eager's"
    return ""


def _blamed(subject: Subject, traced: Traced, probes: list[Tensors]) -> set[str]:
    """Lines at which the trace would have been another at a probe."""
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
