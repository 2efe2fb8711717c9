"""Contracts: narrow them, split them into entries, and enforce them on every call.

Nothing here needs torch: a `TensorSpec` with plain sizes describes each tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from exporter.core.contract_records import (
    Contract,
    Dim,
    TensorSpec,
)
from exporter.core.errors import ContractError, UsageError
from exporter.core.expressions import Expression
from exporter.core.size_range import Range, Sizes


@dataclasses.dataclass(frozen=True)
class Narrowing:
    """The narrower range of a symbol in an artifact made from an exported program, and the model's line that causes it.

    `of` says where the limit applies: to the `graph`, and therefore to everything made from it; to the saved program,
    whose `guards` check it although the graph is correct outside; or to the compiled `code`, which relies on them.
    """

    symbol: str
    bounds: Range
    place: str = ""
    of: Literal["graph", "guards", "code"] = "graph"

    def told(self, promised: Range) -> str:
        """Describe how the range differs from the promised one: `height: multiples of 2 (model.py:12)`."""
        return f"{self.symbol}: {left_of(promised, self.bounds)}{f' ({self.place})' if self.place else ''}"


def left_of(promised: Range, bounds: Range) -> str:
    """Describe the range that is left of `promised`: only `multiples of 2` if nothing but the step changed."""
    step = bounds.multiple_of
    alone = step > promised.multiple_of and promised.within(promised.min, promised.max, step) == bounds
    return f"multiples of {step}" if alone else str(bounds)


def narrow(contract: Contract, narrowings: Iterable[Narrowing]) -> Contract:
    """Return the contract with the ranges of its symbols narrowed."""
    symbols = dict(contract.symbols)
    for one in narrowings:
        if one.symbol in symbols:  # an entry's contract lacks the specialised symbol
            bounds = one.bounds
            symbols[one.symbol] = symbols[one.symbol].within(bounds.min, bounds.max, bounds.multiple_of)
    return dataclasses.replace(contract, symbols=symbols)


def specialized(contract: Contract) -> str:
    """Return the symbol that the artifact has one entry per size for; "" if there is none."""
    return next((name for name, bounds in contract.symbols.items() if bounds.choices), "")


def entry(contract: Contract, size: int) -> Contract:
    """Return the contract of one entry, with the specialised symbol replaced by `size`."""
    return settle(contract, {specialized(contract): size})


def settle(contract: Contract, sizes: Sizes) -> Contract:
    """Return the contract with these symbols replaced by their sizes."""

    def settled(spec: TensorSpec) -> TensorSpec:
        expressions = [Expression.parse(dim) if isinstance(dim, str) else None for dim in spec.shape]
        return dataclasses.replace(
            spec,
            shape=tuple(
                e.at(sizes[e.name]) if e is not None and e.name in sizes else dim
                for e, dim in zip(expressions, spec.shape, strict=True)
            ),
        )

    state = contract.state
    if state is not None:
        shapes = (settled(tensor.spec).shape for tensor in state.tensors)
        tensors = (dataclasses.replace(t, shape=shape) for t, shape in zip(state.tensors, shapes, strict=True))
        state = dataclasses.replace(state, tensors=tuple(tensors))
    return dataclasses.replace(
        contract,
        inputs=tuple(map(settled, contract.inputs)),
        outputs=tuple(map(settled, contract.outputs)),
        state=state,
        symbols={n: bounds for n, bounds in contract.symbols.items() if n not in sizes},
    )


def keeps_state(contract: Contract) -> bool:
    """Whether the artifact carries state from call to call."""
    return contract.state is not None and contract.state.kept == "inside"


def as_function(contract: Contract) -> Contract:
    """Return the contract of the same model as a pure function, with its state among its inputs and outputs."""
    if contract.state is None or contract.state.kept == "outside":
        return contract
    specs = tuple(tensor.spec for tensor in contract.state.tensors)
    return dataclasses.replace(
        contract,
        inputs=contract.inputs + specs,
        outputs=contract.outputs + specs,
        state=dataclasses.replace(contract.state, kept="outside"),
    )


def output_names(contract: Contract) -> list[str]:
    """Return output names that differ from all input names, as a graph requires: the new value of `state.h` is called
    `state.h.next`."""
    taken = {spec.name for spec in contract.inputs}
    return [f"{spec.name}.next" if spec.name in taken else spec.name for spec in contract.outputs]


def selector(contract: Contract) -> tuple[int, int]:
    """Return the input and the axis whose size selects the entry.

    Raises UsageError if no dimension is the specialised symbol itself.
    """
    return place_of(contract, specialized(contract))


def place_of(contract: Contract, name: str) -> tuple[int, int]:
    """Return the first input, and its axis, that is a symbol itself. Raises UsageError if there is none."""
    for index, spec in enumerate(contract.inputs):
        if name in spec.shape:
            return index, spec.shape.index(name)
    raise UsageError(f"no input has the dimension {name} itself", "choose a size that is a dimension of an input")


def sizes_of(contract: Contract, actual: Sequence[TensorSpec]) -> Sizes:
    """Solve for the symbols' sizes from inputs in the contract's order; omit symbols that no input determines."""
    found: Sizes = {}
    for spec, tensor in zip(contract.inputs, actual, strict=False):
        for want, got in zip(spec.shape, tensor.sizes, strict=True):
            expression = Expression.parse(want) if isinstance(want, str) else None
            size = expression.solve(got) if expression is not None else None
            if expression is not None and size is not None:
                found.setdefault(expression.name, size)
    return found


def shape_at(spec: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape at these sizes. Raises ContractError for a dimension that does not follow from them."""
    shape = []
    for axis, dim in enumerate(spec.shape):
        expression = Expression.parse(dim) if isinstance(dim, str) else None
        if expression is not None and expression.name in sizes:
            shape.append(expression.at(sizes[expression.name]))
        elif isinstance(dim, int):
            shape.append(dim)
        else:
            raise ContractError(f"{spec.name} dim {axis} does not follow from the sizes of the inputs")
    return tuple(shape)


def enforce(contract: Contract, actual: Sequence[TensorSpec]) -> None:
    """Raise ContractError if the tensors, in the contract's order, do not satisfy the contract."""
    if len(actual) != len(contract.inputs):
        names = ", ".join(spec.name for spec in contract.inputs)
        raise ContractError(f"{len(actual)} inputs given, the contract has {len(contract.inputs)}: {names}")
    for spec, tensor in zip(contract.inputs, actual, strict=True):
        if tensor.dtype != spec.dtype:
            raise ContractError(f"{spec.name}: dtype {tensor.dtype}, the contract wants {spec.dtype}")
        if len(tensor.shape) != len(spec.shape):
            raise ContractError(f"{spec.name}: {len(tensor.shape)} dimensions, the contract wants {len(spec.shape)}")
    _enforce_sizes(
        contract,
        [
            (f"{spec.name} dim {axis}", want, got)
            for spec, tensor in zip(contract.inputs, actual, strict=True)
            for axis, (want, got) in enumerate(zip(spec.shape, tensor.shape, strict=True))
            if isinstance(got, int)
        ],
    )


def _enforce_sizes(contract: Contract, dims: Sequence[tuple[str, Dim, int]]) -> None:
    """Check fixed sizes, then dimensions that are a symbol itself, then expressions of symbols."""
    for where, want, got in dims:
        if isinstance(want, int) and got != want:
            raise ContractError(f"{where} is {got}, the contract wants {want}")
    symbolic = [(where, Expression.parse(want), got) for where, want, got in dims if isinstance(want, str)]
    symbolic.sort(key=lambda dim: (dim[1].divisor, dim[1] != Expression(dim[1].name)))
    known: dict[str, tuple[int, str]] = {}
    for where, expression, got in symbolic:
        name, bounds = expression.name, contract.symbols[expression.name]
        if name not in known and (size := expression.solve(got)) is not None:
            if not bounds.allows(size):
                raise ContractError(f"{where}: {name} is {size}, the contract allows {bounds}")
            known[name] = (size, where)
        elif name in known:
            size, source = known[name]
            if expression.at(size) != got:
                what = str(got) if str(expression) == name else f"{got}, not {expression} = {expression.at(size)}"
                raise ContractError(f"{where} is {what}, but {name} is {size} (from {source})")
        elif not bounds.allows_any(expression.sizes(got)):
            raise ContractError(f"{where} is {got}: no {name} of {bounds} gives {expression} = {got}")
