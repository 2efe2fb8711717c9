"""What torch knows of the sizes of an exported program's inputs, and bounds that are too narrow there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.solve import try_solve
from torch.utils._sympy.value_ranges import ValueRangeError, ValueRanges, bound_sympy

from exporter.core.contract_records import Contract, Dim
from exporter.core.expressions import is_combined


def environment(program: torch.export.ExportedProgram) -> Any:
    """Return what torch knows of the program's sizes, or None if it has no tensors."""
    modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in program.graph.nodes)
    return next((mode.shape_env for mode in modes if mode is not None and mode.shape_env is not None), None)


def dynamic(program: torch.export.ExportedProgram, contract: Contract) -> Iterator[tuple[Dim, Any]]:
    """Yield the dimensions of the inputs that the program keeps dynamic: the contract's size, and torch's."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"][-len(contract.inputs) :]
    for node, spec in zip(nodes, contract.inputs, strict=True):
        for dim, size in zip(spec.shape, node.meta["val"].shape, strict=True):
            if not isinstance(size, int):
                yield dim, size


def bound_unnamed(program: torch.export.ExportedProgram, contract: Contract) -> None:
    """Bound sizes that depend on several others, such as `past+new`, by what the ranges of those allow.

    torch.export bounds them while it takes every size to be at least 2, and keeps these bounds for ranges from 1 on.
    Bounds from anywhere else, such as a condition in the model, stay.
    """
    ranges: dict[Any, ValueRanges[Any]] = program.range_constraints
    free_dims = (size.node.expr for dim, size in dynamic(program, contract) if is_combined(dim))
    sizes = {size for size in free_dims if size in ranges}
    known = environment(program)
    if not sizes or known is None:
        return
    taken = known.var_to_range
    free = {one: ValueRanges(1 if bounds.lower == 2 else bounds.lower, bounds.upper) for one, bounds in taken.items()}
    free |= {one: bounds for one, bounds in ranges.items() if one.is_Symbol and one not in sizes}
    for size in sizes:
        now = ranges[size]
        lower, upper = now.lower, now.upper
        for relation, value in _relations(size, known):
            try:
                assumed, allowed = bound_sympy(value, taken), bound_sympy(value, free)
            except ValueRangeError:  # no value is possible, as torch 2.11 finds of some quotients
                continue
            if relation in (sympy.Eq, sympy.Ge) and now.lower == max(assumed.lower, 2):
                lower = min(lower, max(allowed.lower, 1))
            if relation in (sympy.Eq, sympy.Le) and now.upper == assumed.upper:
                upper = max(upper, allowed.upper)
        ranges[size] = ValueRanges(lower, upper)


def _relations(size: Any, known: Any) -> Iterator[tuple[Any, Any]]:
    """Yield how a size compares with an expression of other sizes: it may be one, or a condition may relate them."""
    if not size.is_Symbol:
        yield sympy.Eq, size
        return
    for guard in known.guards:
        if solved := try_solve(guard.expr, size):
            yield solved[0].func, solved[1]
