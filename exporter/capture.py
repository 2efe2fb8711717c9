"""torch.export, run once for all targets that need it, and what a target exports from."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from exporter import mapped, places, recurrent, specialization
from exporter.errors import ExportError
from exporter.expressions import Expression
from exporter.flattening import Tensors
from exporter.records import Contract

UNSAVED = "torch.export.save: "  # begins the reason where a program was made and only its file was not
Made = TypeVar("Made")


@dataclass
class Program:
    """What a target exports from. Module, example and exported program are made only when asked for.

    `loading_s` is the time spent on making them, which is no target's fault; `used_capture` tells whether the shared
    exported program was used.
    """

    contract: Contract
    device: str
    make_module: Callable[[], torch.nn.Module]
    make_example: Callable[[], Tensors]
    exported_file: Path | None
    entries: dict[int, Program] = field(default_factory=dict)  # by the size that each was specialised for
    make_samples: Callable[[], list[Tensors]] = list
    loading_s: float = 0.0
    used_capture: bool = False

    @functools.cached_property
    def module(self) -> torch.nn.Module:
        """The flat eager module, on the device, in eval mode."""
        return self._timed(self.make_module)

    @functools.cached_property
    def example(self) -> Tensors:
        """Example inputs at the capture sizes, on the device."""
        return self._timed(self.make_example)

    @functools.cached_property
    def samples(self) -> list[Tensors]:
        """Inputs to calibrate with, at the capture sizes; none of them is the golden's."""
        return self._timed(self.make_samples)

    @functools.cached_property
    def exported(self) -> torch.export.ExportedProgram:
        """The exported program that all targets share. ExportError when torch.export did not take the model.

        One that could not be saved for all is made again here, and so is one that is not shared: of another precision.
        """
        if self.exported_file is None:
            return export_program(self.module, self.example, self.contract)
        if self.exported_file.is_file():
            self.used_capture = True
            return self._timed(functools.partial(load_program, self.exported_file))
        file = self.exported_file.with_suffix(".txt")
        reason = file.read_text() if file.is_file() else "the model was not captured"
        if not reason.startswith(UNSAVED):
            raise ExportError(reason)
        return export_program(self.module, self.example, self.contract)

    def _timed(self, make: Callable[[], Made]) -> Made:
        started = time.perf_counter()
        made = make()
        self.loading_s += time.perf_counter() - started
        return made


def load_program(file: Path) -> torch.export.ExportedProgram:
    """A saved program with mapped weights, fit to be decomposed.

    torch loads ranges of derived dimensions among those of symbols.
    """
    program = mapped.load(file)
    for node in program.graph.nodes:
        environment = getattr(getattr(node.meta.get("val"), "fake_mode", None), "shape_env", None)
        if environment is not None:
            for derived in [key for key in environment.var_to_range if not key.is_Symbol]:
                del environment.var_to_range[derived]
            break
    return program


def export_program(
    module: torch.nn.Module, example: Tensors, contract: Contract, notes: list[str] | None = None, strict: bool = False
) -> torch.export.ExportedProgram:
    """torch.export with the contract's dimensions dynamic; `notes` is told what it fixed or narrowed all the same.

    Where some guard of the graph forbids part of the promised range, the range is left to torch.export: such guards (a
    length of 1 that takes another kernel, say) are often needless, and the golden tells whether this one was.
    ExportError names what is in the way.
    """
    with specialization.watch(_export_somehow.__name__) as fixed:
        program = _export_somehow(functools.partial(_export, strict=strict), module, example, contract, fixed)
    if notes is not None:
        notes += [*fixed.describe(contract), *narrowed(program, contract)]
    return program


def _export_somehow(
    export: Callable[..., torch.export.ExportedProgram],
    module: torch.nn.Module,
    example: Tensors,
    contract: Contract,
    fixed: specialization.Specializations,
) -> torch.export.ExportedProgram:
    named: dict[str, Any] = {
        n: torch.export.Dim(n, min=r.min, max=r.max) for n, r in contract.symbols.items() if r.min < r.max
    }
    try:
        return export(module, example, contract, named)
    except Exception as error:
        if "Constraints violated" not in str(error):
            raise ExportError(f"torch.export: {places.summary(error)}") from error
        violated = error
    free = {n: torch.export.Dim.AUTO(min=contract.symbols[n].min, max=contract.symbols[n].max) for n in named}
    for unnamed in (fixed.symbols(contract), set(named)):  # those that it fixed, or else all
        with contextlib.suppress(Exception):
            return export(module, example, contract, {n: free[n] if n in unnamed else named[n] for n in named})
    raise ExportError(f"torch.export: {places.summary(violated)}") from violated


def _export(
    module: torch.nn.Module, example: Tensors, contract: Contract, dims: dict[str, Any], strict: bool
) -> torch.export.ExportedProgram:
    dynamic = tuple(
        {axis: _dim(dim, dims) for axis, dim in enumerate(spec.shape) if not isinstance(dim, int)}
        for spec in contract.inputs
    )
    with torch.no_grad(), recurrent.kept():
        return torch.export.export(module, example, dynamic_shapes=(dynamic,), strict=strict)


def _dim(dim: str | None, dims: dict[str, Any]) -> Any:
    """What torch.export calls a dimension. It has no words for a division; it finds that by itself."""
    if dim is None:
        return torch.export.Dim.AUTO
    expression = Expression.parse(dim)
    symbol = dims.get(expression.name)
    if str(expression) == expression.name or symbol is None:
        return symbol
    if expression.divisor > 1 or not isinstance(symbol, torch.export.Dim):
        return torch.export.Dim.AUTO
    return expression.factor * symbol + expression.offset


def narrowed(program: torch.export.ExportedProgram, contract: Contract) -> tuple[str, ...]:
    """Which symbols torch.export allows a smaller range than promised."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"][-len(contract.inputs) :]
    notes: dict[str, None] = {}
    for node, spec in zip(nodes, contract.inputs, strict=True):
        for dim, size in zip(spec.shape, node.meta["val"].shape, strict=True):
            if not isinstance(dim, str) or dim not in contract.symbols:
                continue
            if isinstance(size, int):
                continue
            bounds, promised = program.range_constraints.get(size.node.expr), contract.symbols[dim]
            if bounds is not None and (bounds.lower > promised.min or bounds.upper < promised.max):
                notes[f"torch.export allows {dim} only {bounds.lower} to {bounds.upper}; checked beyond that"] = None
    return tuple(notes)
