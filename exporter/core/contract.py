"""Contracts: narrow them, split them into entries, and enforce them on every call.

Nothing here needs torch: a `TensorSpec` with plain sizes describes each tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
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
                dim if e is None else _dim(e.given(sizes)) for e, dim in zip(expressions, spec.shape, strict=True)
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


def _dim(size: Expression | int) -> Dim:
    return size if isinstance(size, int) else str(size)


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
    left = [
        (Expression.parse(want), got)
        for spec, tensor in zip(contract.inputs, actual, strict=False)
        for want, got in zip(spec.shape, tensor.sizes, strict=True)
        if isinstance(want, str)
    ]
    left.sort(key=lambda dim: len(dim[0].terms))
    found: Sizes = {}
    count = -1
    while len(found) != count:  # a sum determines its last unknown symbol
        count = len(found)
        for expression, got in left:
            if (size := expression.solve(got, found)) is not None:
                found[expression.unknown(found)[0]] = size
        left = [dim for dim in left if dim[0].unknown(found)]
    return found


def told(inputs: Sequence[TensorSpec]) -> set[str]:
    """Return the symbols that dimensions of the inputs depend on, without those that occur only in unsolvable sums.

    Callers whose inputs have no dimension but `past+new` could not tell `past` from `new`.
    """
    expressions = [Expression.parse(dim) for spec in inputs for dim in spec.shape if isinstance(dim, str)]
    plain = [one for one in expressions if one.divisor == 1]
    solved = dict.fromkeys(one.names[0] for one in plain if not one.is_sum)
    for _ in plain:
        unknown = [one.unknown(solved) for one in plain]
        solved |= dict.fromkeys(names[0] for names in unknown if len(names) == 1)
    return {*solved, *(one.names[0] for one in expressions if not one.is_sum)}


def shape_at(spec: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """Return the shape at these sizes. Raises ContractError for a dimension that does not follow from them."""
    shape = []
    for axis, dim in enumerate(spec.shape):
        expression = Expression.parse(dim) if isinstance(dim, str) else None
        if expression is not None and not expression.unknown(sizes):
            shape.append(expression.at(sizes))
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
    """Check fixed sizes, then dimensions that are a symbol itself, then expressions of symbols.

    An expression with one unknown symbol determines it if only one size is possible.
    """
    for where, want, got in dims:
        if isinstance(want, int) and got != want:
            raise ContractError(f"{where} is {got}, the contract wants {want}")
    left = [(where, Expression.parse(want), got) for where, want, got in dims if isinstance(want, str)]
    left.sort(key=lambda dim: (len(dim[1].terms), dim[1].divisor, not dim[1].is_symbol))
    known, sources, count = Sizes(), dict[str, str](), -1
    while len(left) != count:
        count, waiting = len(left), []
        for where, expression, got in left:
            unknown = expression.unknown(known)
            if not unknown:
                if expression.at(known) != got:
                    raise ContractError(_differs(where, expression, got, known, sources))
            elif (size := expression.solve(got, known)) is None:
                waiting.append((where, expression, got))
            elif not contract.symbols[unknown[0]].allows(size):
                because = _because(expression, known, sources, "because")
                allowed = f"the contract allows {contract.symbols[unknown[0]]}"
                raise ContractError(f"{where}: {unknown[0]} is {size}, {allowed}{because}")
            else:
                known[unknown[0]], sources[unknown[0]] = size, where
        left = waiting
    for where, expression, got in left:
        _enforce_possible(contract, (where, expression, got), known, sources)


def _differs(where: str, expression: Expression, got: int, known: Sizes, sources: Mapping[str, str]) -> str:
    what = str(got) if expression.is_symbol else f"{got}, not {expression} = {expression.at(known)}"
    return f"{where} is {what}{_because(expression, known, sources)}"


def _because(expression: Expression, known: Sizes, sources: Mapping[str, str], word: str = "but") -> str:
    """Return the known sizes of an expression with their sources, as the end of a message."""
    said = [f"{name} is {known[name]} (from {sources[name]})" for name in expression.names if name in known]
    return f", {word} {' and '.join(said)}" if said else ""


def _enforce_possible(
    contract: Contract, dim: tuple[str, Expression, int], known: Sizes, sources: Mapping[str, str]
) -> None:
    """Raise ContractError if a dimension with unknown symbols has a size that none of their sizes gives.

    Of several unknown symbols, only the smallest and the largest sizes count.
    """
    where, expression, got = dim
    unknown = expression.unknown(known)
    if len(unknown) == 1:
        possible = contract.symbols[unknown[0]].allows_any(expression.sizes(got, known))
    else:
        ends = [known | {name: contract.symbols[name].sizes[end] for name in unknown} for end in (0, -1)]
        possible = expression.at(ends[0]) <= got <= expression.at(ends[1])
    if not possible:
        allowed = " and ".join(f"{name} of {contract.symbols[name]}" for name in unknown)
        because = _because(expression, known, sources, "because")
        raise ContractError(f"{where} is {got}: no {allowed} gives {expression} = {got}{because}")
