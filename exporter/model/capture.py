"""Running torch.export once for all targets that need it, and the program that each target exports from.

This file is long because a target whose precision differs runs torch.export itself, in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from exporter.core import causes_in_traces, source_lines
from exporter.core import contract as contracts
from exporter.core.contract_records import Contract
from exporter.core.errors import Blame, ExportError
from exporter.core.expressions import Expression
from exporter.core.parity_records import SizeLimit
from exporter.core.size_range import Range, Sizes
from exporter.model import (
    causal_masks,
    clamped_slices,
    counted_results,
    covariances,
    differentiation,
    distributions,
    fixed_dims,
    floor_division,
    gpu_operators,
    mapped_program,
    mixed_dtypes,
    mixture_of_experts,
    padded_encoders,
    program_sizes,
    recurrent,
    running_statistics,
    sizes_in_builtins,
    sizes_in_calls,
    sparse_matrices,
    value_checks,
)
from exporter.model.fixed_dims import Rule
from exporter.model.known_constants import KnownConstants
from exporter.model.no_program import NoProgram
from exporter.model.state import carrying, data_writes, mutation
from exporter.model.state.snapshot import Snapshot
from exporter.model.tensors import Tensors

# In torch.export's error if the code restricts a size further than requested. The second form has no details; the third
# is an assertion that fails while torch.export words the first.
VIOLATED = ("Constraints violated", "Cannot create Dim with inconsistent", "Expected op to be '=='")
Made = TypeVar("Made")
# A program, what torch.export fixed, and the lines of checks of values that the program leaves out.
Watched = tuple[torch.export.ExportedProgram, fixed_dims.Specializations, dict[str, None]]
Samples = tuple[list[Tensors], list[Tensors]]  # the recipe's samples, and generated ones


@dataclass
class Program:
    """What a target exports from. The module, the example and the exported program are made on first use.

    `loading_s` is the time in seconds spent on making them, which does not count towards the target's time.
    `used_capture` says whether the shared exported program was used.
    """

    contract: Contract
    device: str
    make_module: Callable[[], torch.nn.Module]
    make_example: Callable[[], Tensors]
    exported_file: Path | None
    entries: dict[int, Program] = field(default_factory=dict)  # by the size for which each is specialised
    make_samples: Callable[[], Samples] = lambda: ([], [])
    make_at: Callable[[dict[str, int]], Tensors] | None = None  # inputs like the example, at these sizes
    whole: Contract | None = None  # what the module takes, if the exported program takes less
    excluded: tuple[Sizes, ...] = ()  # some sizes that only the module takes
    part_of: torch.export.ExportedProgram | None = None  # the program whose settings apply, if this is a part of it
    loading_s: float = 0.0
    used_capture: bool = False

    @property
    def function(self) -> Contract:
        """Return the module's contract, with state among inputs and outputs even if the artifact keeps it inside."""
        return contracts.as_function(self.contract)

    def outside(self) -> Iterator[Tensors]:
        """Yield inputs that the module takes at sizes that the contract excludes: out of range, or between steps."""
        if self.whole is None or self.make_at is None:
            return
        for name, wide in self.whole.symbols.items():
            narrow = self.contract.symbols.get(name, wide)
            sizes = wide.sizes  # a range may have billions of sizes, so do not iterate
            low, high = bisect_left(sizes, narrow.sizes[0]), bisect_right(sizes, narrow.sizes[-1])
            below, above = sizes[:low], sizes[high:]
            between = [size for size in sizes[low:high][: 2 * narrow.multiple_of + 1] if not narrow.allows(size)]
            for size in dict.fromkeys((*between[:2], *below[:1], *below[-1:], *above[:1])):
                yield self.make_at({name: size})
        yield from map(self.make_at, self.excluded)

    @property
    def keeps_state(self) -> bool:
        """Return whether the artifact carries state from call to call."""
        return contracts.keeps_state(self.contract)

    @functools.cached_property
    def module(self) -> torch.nn.Module:
        """Return the flat eager module, on the device, in eval mode."""
        return self._timed(self.make_module)

    @functools.cached_property
    def example(self) -> Tensors:
        """Return example inputs at the capture sizes, on the device."""
        return self._timed(self.make_example)

    @property
    def samples(self) -> list[Tensors]:
        """Return calibration inputs: the recipe's samples, then generated ones."""
        own, drawn = self._samples
        return own + drawn

    @property
    def calibration(self) -> str:
        """Describe the calibration inputs."""
        own, drawn = map(len, self._samples)
        if not own:
            return f"calibrated with only {drawn} generated inputs: samples() would supply real ones"
        return f"calibrated with {own} of samples() and {drawn} generated inputs"

    @functools.cached_property
    def _samples(self) -> Samples:
        return self._timed(self.make_samples)

    @functools.cached_property
    def exported(self) -> torch.export.ExportedProgram:
        """Return the exported program that all targets share. Raises ExportError if torch.export rejected the model.

        The program is exported again if it could not be saved, or if it is not shared because its precision differs.
        """
        if self.exported_file is None:
            return export_program(self.module, self.example, self.function)
        if self.exported_file.is_file():
            self.used_capture = True
            return self._timed(functools.partial(load_program, self.exported_file))
        missing = NoProgram.read(self.exported_file)
        if not missing.made:
            raise ExportError(missing.reason, blame=missing.blame)
        return export_program(self.module, self.example, self.function)

    @functools.cached_property
    def artifact(self) -> torch.export.ExportedProgram:
        """Return the program as the artifact contains it: the shared one, or one with its state in buffers."""
        return self.capture(self.module) if self.keeps_state else self.exported

    def capture(self, module: torch.nn.Module) -> torch.export.ExportedProgram:
        """Export `module` in the form that the artifact contains. Raises ExportError like `exported`."""
        if not self.keeps_state:
            return export_program(module, self.example, self.function)
        inputs = self.example[: len(self.contract.inputs)]
        made = export_program(carrying.module(module, self.contract, self.device), inputs, self.contract)
        if passed := carrying.passed_on(made):
            again = carrying.module(module, self.contract, self.device, passed)
            return export_program(again, inputs, self.contract)
        return made

    def _timed(self, make: Callable[[], Made]) -> Made:
        started = time.perf_counter()
        made = make()
        self.loading_s += time.perf_counter() - started
        return made


def load_program(file: Path) -> torch.export.ExportedProgram:
    """Load a saved program with mapped weights so that it can be decomposed.

    torch mixes the ranges of derived dimensions with those of symbols; they are removed here.
    """
    program = mapped_program.load(file)
    environment = program_sizes.environment(program)
    for derived in [key for key in environment.var_to_range if not key.is_Symbol] if environment else ():
        del environment.var_to_range[derived]
    return program


@dataclass(frozen=True)
class Captured:
    """The result of torch.export: the program, the sizes that it fixed or narrowed, and the steps that it requires."""

    program: torch.export.ExportedProgram
    fixed: tuple[SizeLimit, ...]
    bounds: dict[str, Range]  # of the symbols whose range is smaller than promised
    rules: dict[str, Rule]
    relaxed: bool  # whether torch.export rejected the promised ranges
    place: Callable[[str, int, int], str]  # the line of the condition that a size breaks or that requires a step
    checks: tuple[str, ...] = ()  # lines of checks of values, which the program leaves out


def export_program(
    module: torch.nn.Module, example: Tensors, contract: Contract, strict: bool = False
) -> torch.export.ExportedProgram:
    """Run torch.export with the contract's dimensions dynamic. Raises ExportError, which names the obstacle."""
    return capture(module, example, contract, strict).program


def capture(
    module: torch.nn.Module, example: Tensors, contract: Contract, strict: bool = False, checks_pass: bool = True
) -> Captured:
    """Run torch.export with the contract's dimensions dynamic; also return what it fixed or narrowed nevertheless.

    If a guard of the graph forbids part of the promised range, torch.export chooses the range. Such guards (a length of
    1 that selects another kernel, for example) are often needless; `exporter.evidence.narrowing` tests them.

    If the code needs the values of tensors, those of constants are followed.

    Checks of values are left out of the program unless `checks_pass` is false; then they are rejected.

    Raises ExportError, which names the obstacle or a tensor that the program changes but that is not known as state.
    """
    export = functools.partial(_export, strict=strict)
    passed = value_checks.passed if checks_pass else _no_checks
    slices = clamped_slices.Slices()
    watched = contextlib.nullcontext if strict else slices.watched  # a strict capture supports no mode
    run = functools.partial(_watched, export, passed, watched, module, example, contract)
    attempt = functools.partial(_attempt, run, module, example, contract, strict)
    error = None
    try:
        made = attempt()
    except ExportError as raised:
        if strict or not slices.seen:
            raise
        error = raised
    if slices.seen and not strict and (_violated(error) if error else made[1].relaxed):
        slices.rewritten = True
        with contextlib.suppress(ExportError):
            other = attempt()
            wider = error is not None or _allows_more(other, made, contract)
            if wider and not slices.written and _agrees(other[0], module, example):
                made, error = other, None
    if error is not None:
        raise error from error.__cause__
    program, found, checks = made
    mutation.require_known(program)
    _begin_slices(program)
    program_sizes.bound_unnamed(program, contract)
    floor_division.make_exact(program)
    place = functools.partial(found.place, contract)
    bounds = _allowed(program, contract)
    return Captured(program, found.fixed(contract), bounds, found.rules, found.relaxed, place, tuple(checks))


def _attempt(
    run: Callable[..., Watched], module: torch.nn.Module, example: Tensors, contract: Contract, strict: bool
) -> Watched:
    """Export with constants followed if the code needs values, and with Python's builtins replaced if that helps."""
    with contextlib.ExitStack() as stack:
        try:
            last = run({})
        except ExportError as error:
            if strict or "data-dependent" not in str(error.__cause__):
                raise
            constant: Any = module.function if contracts.keeps_state(contract) else module  # without the state
            stack.enter_context(KnownConstants(constant))
            try:
                last = run({})
            except ExportError:
                raise error from error.__cause__
        found = last
        callers: dict[int, dict[str, Any]] = {}
        while found[1].fixed(contract) and not last[1].callers.keys() <= callers.keys():
            callers |= last[1].callers
            try:
                last = run(callers)
            except ExportError:  # a module may need Python's own functions
                break
            if len(last[1].fixed(contract)) < len(found[1].fixed(contract)) and _agrees(last[0], module, example):
                found = last
    return found


def _violated(error: ExportError) -> bool:
    """Return whether torch.export rejected the promised ranges, whichever it may choose."""
    return any(said in str(error.__cause__) for said in VIOLATED)


def _allows_more(one: Watched, other: Watched, contract: Contract) -> bool:
    """Return whether a program allows more of the promised combinations of sizes than another, and fixes no more."""
    rooms = [
        math.prod(len(bounds.sizes) for bounds in {**contract.symbols, **_allowed(program, contract)}.values())
        for program, *_ in (one, other)
    ]
    return rooms[0] > rooms[1] and len(one[1].fixed(contract)) <= len(other[1].fixed(contract))


def _begin_slices(program: torch.export.ExportedProgram) -> None:
    """Let slices without a start begin at 0: if the end depends on values, inductor fails for a start of None."""
    graphs = (one for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule))
    for node in itertools.chain.from_iterable(one.graph.nodes for one in graphs):
        if node.target is torch.ops.aten.slice.Tensor and len(node.args) > 3 and node.args[2] is None:
            node.update_arg(2, 0)


def _no_checks() -> contextlib.AbstractContextManager[dict[str, None]]:
    return contextlib.nullcontext({})


def _watched(
    export: Callable[..., torch.export.ExportedProgram],
    passed: Callable[[], contextlib.AbstractContextManager[dict[str, None]]],
    slices: Callable[[], contextlib.AbstractContextManager[None]],
    module: torch.nn.Module,
    example: Tensors,
    contract: Contract,
    callers: dict[int, dict[str, Any]],
) -> Watched:
    """Return a program, what torch.export fixed, and the lines of checks of values that the program leaves out.

    In the modules `callers`, Python's builtins keep sizes.
    """
    with (
        fixed_dims.watch(_export_somehow.__name__) as found,
        passed() as checks,
        sizes_in_builtins.kept(callers.values()),
        slices(),
    ):
        return _export_somehow(export, module, example, contract, found), found, checks


def _export_somehow(
    export: Callable[..., torch.export.ExportedProgram],
    module: torch.nn.Module,
    example: Tensors,
    contract: Contract,
    found: fixed_dims.Specializations,
) -> torch.export.ExportedProgram:
    moving = {n: r for n, r in contract.symbols.items() if len(r.sizes) > 1}
    named = {n: _named(n, r) for n, r in moving.items()}
    try:
        return export(module, example, contract, named)
    except Exception as error:
        if not any(said in str(error) for said in VIOLATED):
            check = source_lines.check_of(error) if "data-dependent" in str(error) else ""
            said = f"torch.export: {check} on the values of tensors" if check else "torch.export"
            text = _with_writes(source_lines.blamed(said, error), module)
            shown = Blame("check-on-values", {"what": check}) if check else causes_in_traces.blame(error)
            raise ExportError(text, blame=source_lines.blame(error) or shown) from error
        violated = error
    found.relaxed = True
    asked = fixed_dims.rules(str(violated))
    found.rules = {n: rule for n, rule in asked.items() if n in moving and moving[n].multiple_of % rule.multiple}
    free = {n: torch.export.Dim.AUTO(min=r.min, max=_most(r.max)) for n, r in moving.items()}
    for unnamed in (found.symbols(contract), set(named)):  # first the fixed symbols only, then all
        with contextlib.suppress(Exception):
            return export(module, example, contract, {n: free[n] if n in unnamed else named[n] for n in named})
    text = source_lines.blamed("torch.export", violated)
    raise ExportError(text, blame=source_lines.blame(violated)) from violated


def _with_writes(said: str, module: torch.nn.Module) -> str:
    """Add the line that writes through `.data` if that may be the constant that torch.export complains about."""
    if "fake tensor in the exported program constant" not in said or source_lines.place(said):
        return said
    lines = data_writes.writes(type(inner) for inner in module.modules())
    return f"{said} ({lines[0]})" if lines else said


def _named(name: str, bounds: Range) -> Any:
    """Return the torch.export.Dim of a symbol; a step makes it a multiple of another Dim, as torch.export advises."""
    step, sizes = bounds.multiple_of, bounds.sizes
    if step == 1:
        return torch.export.Dim(name, min=bounds.min, max=_most(bounds.max))
    return step * torch.export.Dim(f"_{name}", min=sizes[0] // step, max=_most(sizes[-1] // step))


def _most(promised: int) -> int:
    """Return the largest value of a Dim whose largest promised value is given.

    torch.export treats 1 as a constant, and would fix the size if 2 were the only other value.
    """
    return max(promised, 3)


def _export(
    module: torch.nn.Module, example: Tensors, contract: Contract, dims: dict[str, Any], strict: bool
) -> torch.export.ExportedProgram:
    dynamic = tuple(
        {axis: _dim(dim, dims) for axis, dim in enumerate(spec.shape) if not isinstance(dim, int)}
        for spec in contract.inputs
    )
    with (
        torch.no_grad(),
        recurrent.kept(),
        gpu_operators.captured(),
        distributions.unchecked(),
        causal_masks.uncompared(),
        counted_results.any_number(),
        covariances.traced(),
        mixture_of_experts.dense(module),
        padded_encoders.zeroed(),
        running_statistics.written(),
        sizes_in_calls.traced(),
        mixed_dtypes.agreeing(module, example),
        sparse_matrices.multiplied(module),
        _without_views(module),
    ):
        with differentiation.refused() as gradients:
            try:
                made = torch.export.export(module, example, dynamic_shapes=(dynamic,), strict=strict)
            except Exception:  # torch.export may convert the refusal to any exception
                if not gradients:
                    raise
            if not gradients:  # the model may catch the refusal
                return made
        _note_recording(module, example)
        return differentiation.export(module, example, (dynamic,))


def _agrees(program: torch.export.ExportedProgram, module: torch.nn.Module, example: Tensors) -> bool:
    """Return whether a program agrees with eager at the example."""
    held = Snapshot(module)
    try:
        with torch.no_grad():
            pairs = zip(module(*_copied(example)), program.module(check_guards=False)(*_copied(example)), strict=True)
            return all(itertools.starmap(carrying.agree, pairs))
    except Exception:  # a model that relies on Python's own functions may raise anything
        return False
    finally:
        held.restore()


def _copied(tensors: Tensors) -> Tensors:
    return tuple(tensor.clone() for tensor in tensors)


def _note_recording(module: torch.nn.Module, example: Tensors) -> None:
    """Let the model note what must be recorded for its gradients: it repeats a call, which it cannot in a capture."""
    held = Snapshot(module)
    module(*_copied(example))
    held.restore()


@contextlib.contextmanager
def _without_views(module: torch.nn.Module) -> Iterator[None]:
    """Replace buffers that are views and were cast to another dtype than their base, which torch.export rejects."""
    with contextlib.ExitStack() as stack:
        for inner in module.modules():
            for name, buffer in inner._buffers.items():
                if buffer is not None and buffer._base is not None and buffer._base.dtype != buffer.dtype:
                    stack.callback(inner._buffers.__setitem__, name, buffer)
                    inner._buffers[name] = buffer.detach().clone()
        yield


def _dim(dim: str | None, dims: dict[str, Any]) -> Any:
    """Return the torch.export.Dim of a dimension.

    A Dim cannot express division, or a sum of several sizes; torch.export infers these itself.
    """
    if dim is None:
        return torch.export.Dim.AUTO
    expression = Expression.parse(dim)
    if expression.is_sum:
        return torch.export.Dim.AUTO if any(name in dims for name in expression.names) else None
    ((name, factor),) = expression.terms
    symbol = dims.get(name)
    if expression.is_symbol or symbol is None:
        return symbol
    if expression.divisor > 1 or not isinstance(symbol, torch.export.Dim):
        return torch.export.Dim.AUTO
    try:
        return factor * symbol + expression.offset
    except TypeError:  # torch evaluates the name with sympy, where N, S, beta and Python's len mean something else
        return torch.export.Dim.AUTO


def _allowed(program: torch.export.ExportedProgram, contract: Contract) -> dict[str, Range]:
    """Return the ranges that torch.export allows, for symbols whose range is smaller than promised."""
    found: dict[str, Range] = {}
    for dim, size in program_sizes.dynamic(program, contract):
        if isinstance(dim, str) and dim in contract.symbols:
            bounds, promised = program.range_constraints.get(size.node.expr), contract.symbols[dim]
            if bounds is not None and (bounds.lower > promised.sizes[0] or bounds.upper < promised.sizes[-1]):
                found[dim] = Range(max(int(bounds.lower), promised.min), int(min(bounds.upper, promised.max)))
    return found
