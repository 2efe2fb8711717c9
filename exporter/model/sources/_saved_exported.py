"""An ExportedProgram as a model to export again."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from exporter.core.contract_records import Contract
from exporter.core.dimensions import LARGEST, LARGEST_BATCH, NamedDim
from exporter.core.errors import ExportError, RecipeError
from exporter.core.probing import nearest
from exporter.core.size_range import Range
from exporter.model import examples
from exporter.model.examples import Dim, Inputs, Leaf
from exporter.model.flattening import flatten_inputs, output_leaves
from exporter.model.recipes import FunctionRecipe, Recipe, Source
from exporter.model.sources import _saved_files
from exporter.model.sources._saved_inputs import of_golden
from exporter.model.sources._saved_scripted import said
from exporter.model.torchscript import bridge
from exporter.model.torchscript.interpreter import Interpreter

UNBOUNDED = 2**31


def recipe(path: Path, contract: Contract | None, source: Source) -> Recipe:
    """Return the recipe of a `.pt2`. A contract supplies names and may narrow ranges; the rest is in the program.

    Raises RecipeError if torch cannot read it, or if --inputs does not fit it.
    """
    program = _saved_files.load_exported(path)
    taken = _taken(program)
    model = _Exported(program, contract)
    if source.inputs_file:
        given = _given(model, taken, source.inputs_file)
    else:
        given = (of_golden(contract, path) if contract else None) or _example(program, taken)
    symbols = _named(_symbols(program, taken, given, contract), _dims(model, taken), source.dims)
    leaves = [
        Leaf(value, {axis: _follow(expression, symbols) for axis, expression in _moving(one.value)})
        for one, value in zip(taken, given, strict=True)
    ]
    inputs = Inputs(leaves, model.by_name, {s.name: s.size for s in symbols.values()})
    return FunctionRecipe(
        lambda weights: said(model, weights), inputs, {s.name: s.bounds.written for s in symbols.values()}
    )


class _Exported(torch.nn.Module):
    """An exported program as a module that takes its arguments by name and can be moved to another device."""

    def __init__(self, program: torch.export.ExportedProgram, contract: Contract | None) -> None:
        super().__init__()
        self.exported = program
        self.program = program.module()
        self.in_spec = program.call_spec.in_spec
        args, _ = pytree.tree_unflatten(list(range(self.in_spec.num_leaves)), self.in_spec)
        known = (
            [spec.name for spec in contract.inputs]
            if contract is not None
            else list(inspect.signature(self.program.forward).parameters)
        )
        self.names = tuple(known[: len(args)])
        self.outputs = tuple(spec.name for spec in contract.outputs) if contract is not None else ()
        self.training = False

    def by_name(self, leaves: list[Any]) -> dict[str, Any]:
        """Return the inputs built from these leaves, by argument name."""
        args: tuple[Any, ...]
        kwargs: dict[str, Any]
        args, kwargs = pytree.tree_unflatten(leaves, self.in_spec)
        return dict(zip(self.names, args, strict=True)) | kwargs

    def forward(self, **inputs: Any) -> Any:
        """Return the program's outputs, by name if a contract names them."""
        args = [inputs.pop(name) for name in self.names]
        outputs = self._traced(args, inputs) if torch._C._get_tracing_state() else self.program(*args, **inputs)
        return dict(zip(self.outputs, output_leaves(outputs)[1], strict=True)) if self.outputs else outputs

    def _traced(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run the program as TorchScript if possible, because torch.jit.trace would otherwise fix its sizes."""
        if self._scripted is None:
            return self.program(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        return self._scripted[0](*tensors)

    @functools.cached_property
    def _scripted(self) -> tuple[Interpreter] | None:
        """Return the program as TorchScript, or None if it cannot be converted.

        The tuple keeps it out of the module tree. It must live as long as any trace of it.
        """
        try:
            return (Interpreter(bridge.from_exported(self.exported)),)
        except ExportError:
            return None

    def train(self, mode: bool = True) -> _Exported:
        """Do nothing: an exported program has no training mode."""
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> _Exported:
        """Move the graph's devices together with the weights: the graph contains them as constants."""
        from torch.export.passes import move_to_device_pass

        here = next((t.device for t in (*self.parameters(), *self.buffers())), torch.device("cpu"))
        there = fn(torch.empty(0, device=here)).device
        if there != here:
            self.exported = move_to_device_pass(self.exported, there)
            self.program = self.exported.module()
            self.__dict__.pop("_scripted", None)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


@dataclass(frozen=True)
class _Taken:
    """One leaf of a program's inputs: the placeholder's name, and a fake tensor or a constant."""

    name: str
    value: Any


def _taken(program: torch.export.ExportedProgram) -> list[_Taken]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return [
        _Taken(spec.arg.name, spec.arg.value if isinstance(spec.arg, ConstantArgument) else values[spec.arg.name])
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]


def _example(program: torch.export.ExportedProgram, taken: Sequence[_Taken]) -> list[Any]:
    """Return the inputs that the program was exported with, or made-up ones from its metadata."""
    if program.example_inputs is not None:
        return pytree.tree_leaves(program.example_inputs)
    return [_made_up(one.value) if isinstance(one.value, torch.Tensor) else one.value for one in taken]


def _made_up(value: torch.Tensor) -> torch.Tensor:
    """Return random numbers, or zeros for other dtypes because zero is a valid index."""
    sizes: Sequence[Any] = value.shape
    shape = [size if isinstance(size, int) else size.node.hint or 2 for size in sizes]
    made = torch.randn(shape) if value.is_floating_point() else torch.zeros(shape)
    return made.to(value.dtype)


def _given(model: _Exported, taken: Sequence[_Taken], inputs_file: str) -> list[Any]:
    held = _saved_files.load_tensors(Path(inputs_file))
    values = held if isinstance(held, dict) else dict(zip(model.names, _saved_files.as_list(held), strict=False))
    kwargs = {name: value for name, value in values.items() if name not in model.names}
    leaves, spec = pytree.tree_flatten((tuple(values.get(name) for name in model.names), kwargs))
    if spec != model.in_spec or not all(_fits(leaf, one.value) for leaf, one in zip(leaves, taken, strict=True)):
        raise RecipeError(
            f"--inputs {inputs_file} does not fit the program",
            f"it takes {', '.join(_described(one) for one in taken)}",
        )
    return leaves


def _fits(leaf: Any, value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return bool(leaf == value)
    return isinstance(leaf, torch.Tensor) and (leaf.dtype, leaf.dim()) == (value.dtype, value.dim())


def _described(one: _Taken) -> str:
    if not isinstance(one.value, torch.Tensor):
        return f"{one.name}={one.value!r}"
    return f"{one.name} {str(one.value.dtype).removeprefix('torch.')} {list(one.value.shape)}"


# Sizes.


@dataclass(frozen=True)
class _Symbol:
    name: str
    size: int
    min: int
    max: int
    step: int = 1

    @property
    def bounds(self) -> Range:
        """Return its range."""
        return Range(self.min, self.max, multiple_of=self.step)


def _moving(value: Any) -> list[tuple[int, Any]]:
    """Return the axes of a tensor that have symbolic sizes, with their expressions."""
    if not isinstance(value, torch.Tensor):
        return []
    sizes: Sequence[Any] = value.shape
    return [(axis, size.node.expr) for axis, size in enumerate(sizes) if not isinstance(size, int)]


def _symbols(
    program: torch.export.ExportedProgram, taken: Sequence[_Taken], given: Sequence[Any], contract: Contract | None
) -> dict[Any, _Symbol]:
    """Return every symbol in the inputs' sizes, in order of first use."""
    found = dict[Any, _Symbol]()
    for index, (one, value) in enumerate(zip(taken, given, strict=True)):
        for axis, expression in _moving(one.value):
            for symbol in sorted(expression.free_symbols - found.keys(), key=str):
                promised = contract.inputs[index].shape[axis] if contract and expression == symbol else None
                own = contract is not None and promised in contract.symbols  # not a size that depends on others
                name = str(promised) if own else _name(symbol, one.name, axis, found)
                low, high = _bounds(program, symbol, LARGEST if axis else LARGEST_BATCH)
                known = contract.symbols.get(name) if contract else None
                if known is not None:
                    low, high = max(low, known.min), min(high, known.max)
                size = _solve(expression, symbol, value.shape[axis], low, high)
                found[symbol] = _Symbol(name, size, low, max(high, size), known.multiple_of if known else 1)
    return found


def _name(symbol: Any, argument: str, axis: int, found: dict[Any, _Symbol]) -> str:
    """Return `batch` for the first dimension 0, else the program's name if it is readable, else ARGUMENT_dimAXIS."""
    taken = {known.name for known in found.values()}
    if axis == 0 and "batch" not in taken:
        return "batch"
    own = str(symbol)
    return f"{argument}_dim{axis}" if re.fullmatch(r"[su]\d+", own) or own in taken or not own.isidentifier() else own


def _bounds(program: torch.export.ExportedProgram, symbol: Any, largest: int) -> tuple[int, int]:
    bounds = program.range_constraints.get(symbol)
    if bounds is None:
        return 1, largest
    low = max(1, int(bounds.lower))
    return low, int(bounds.upper) if bool(bounds.upper < UNBOUNDED) else max(low, largest)


def _solve(expression: Any, symbol: Any, value: int, low: int, high: int) -> int:
    """Return the symbol's size in the example if the expression has no other symbol, else its minimum."""
    if expression == symbol:
        return value
    if expression.free_symbols != {symbol}:
        return low
    return next((size for size in range(low, high + 1) if int(expression.subs(symbol, size)) == value), low)


def _dims(model: _Exported, taken: Sequence[_Taken]) -> dict[str, list[Any]]:
    """Return the dimensions of each input, by its name; each is a number or an expression."""
    leaves = [one.value if isinstance(one.value, torch.Tensor) else None for one in taken]
    flat = flatten_inputs(model, model.by_name(leaves))
    return {
        name: [size if isinstance(size, int) else size.node.expr for size in tensor.shape]
        for name, tensor in zip(flat.names, flat.tensors, strict=True)
    }


def _named(symbols: dict[Any, _Symbol], shapes: dict[str, list[Any]], dims: Sequence[NamedDim]) -> dict[Any, _Symbol]:
    """Return the symbols with the user's names and ranges. Raises RecipeError for a fixed or missing dimension."""
    names: dict[Any, str] = {}
    found = dict(symbols)
    for dim in dims:
        if dim.axis >= len(shapes.get(dim.input, ())):
            raise examples.no_such(dim, {name: len(shape) for name, shape in shapes.items()})
        size = shapes[dim.input][dim.axis]
        if size not in found:
            raise examples.not_free(dim, size if isinstance(size, int) else str(size))
        if names.setdefault(size, dim.name) != dim.name:
            raise examples.one_size(symbols[size].name, dim.name, names[size])
        one = found[size]
        bounds = examples.within(dim, one.bounds) if dim.bounds else one.bounds
        found[size] = _Symbol(dim.name, nearest(one.size, bounds), bounds.min, bounds.max, bounds.multiple_of)
    examples.require_distinct([one.name for one in found.values()])
    return found


def _follow(expression: Any, symbols: dict[Any, _Symbol]) -> Dim:
    def size(sizes: Any) -> int:
        return int(expression.subs({symbol: sizes[symbols[symbol].name] for symbol in expression.free_symbols}))

    return size
