"""From any model to a flat one: named tensors in, a tuple of named tensors out.

Keyword arguments, dicts, ModelOutputs, nested tuples and constants among the inputs are folded away here, once, so
that no target has to know of them; and torch.export is run here, once, for all targets that need it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from exporter import places, recurrent, specialization
from exporter.errors import ExportError, RecipeError
from exporter.expressions import Expression
from exporter.records import Contract, TensorSpec
from exporter.serialization import LARGEST

Tensors = tuple[torch.Tensor, ...]
UNSAVED = "torch.export.save: "  # begins the reason where a program was made and only its file was not
Made = TypeVar("Made")


@dataclass(frozen=True)
class FlatInputs:
    """Inputs taken apart: tensors with their names, constants with theirs, and how to put them together again."""

    names: tuple[str, ...]
    tensors: Tensors
    constants: dict[str, Any]
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with these tensors in place of the example's."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return tuple(args), dict(kwargs)


def flatten_inputs(model: torch.nn.Module, inputs: Any) -> FlatInputs:
    """Take apart what a recipe's inputs() gave. RecipeError when there is no tensor in it."""
    args, kwargs = _as_call(inputs)
    _register_caches()
    parameters = [p.name for p in inspect.signature(model.forward).parameters.values()]
    paths, spec = pytree.tree_flatten_with_path((args, kwargs))
    names = [_input_name(path, parameters) for path, _ in paths]
    leaves = tuple(leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for _, leaf in paths)
    named = [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, torch.Tensor)]
    if not named:
        raise RecipeError(
            f"the recipe's inputs are of type {type(inputs).__name__}, with no tensor in it",
            "return a dict of tensors by argument name",
        )
    constants = {name: leaf for name, leaf in zip(names, leaves, strict=True) if not isinstance(leaf, torch.Tensor)}
    return FlatInputs(tuple(n for n, _ in named), tuple(t for _, t in named), constants, leaves, spec)


def constants(flat: FlatInputs) -> dict[str, bool | int | float | str]:
    """The constants as a contract has them: what JSON has as it is, all else as Python writes it; None is nothing."""
    return {
        name: leaf
        if isinstance(leaf, (bool, int, str)) or (isinstance(leaf, float) and abs(leaf) <= LARGEST)
        else repr(leaf)
        for name, leaf in flat.constants.items()
        if leaf is not None
    }


def _register_caches() -> None:
    """Let pytree take apart transformers' cache of keys and values, where that is loaded and has not done so itself."""
    module = sys.modules.get("transformers.cache_utils")
    if module is None or module.DynamicCache in pytree.SUPPORTED_NODES:
        return

    def take_apart(cache: Any) -> tuple[list[Any], None]:
        return [{"key": layer.keys, "value": layer.values} for layer in cache.layers], None

    def with_keys(cache: Any) -> tuple[list[tuple[Any, Any]], None]:
        layers, context = take_apart(cache)
        return [(pytree.SequenceKey(i), layer) for i, layer in enumerate(layers)], context

    def put_together(layers: Any, context: None) -> Any:
        cache = module.DynamicCache()
        for i, layer in enumerate(layers):
            cache.update(layer["key"], layer["value"], i)
        return cache

    name = "exporter.DynamicCache"
    pytree.register_pytree_node(
        module.DynamicCache, take_apart, put_together, serialized_type_name=name, flatten_with_keys_fn=with_keys
    )


def _as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    if hasattr(inputs, "keys"):  # a dict, or a tokenizer's BatchEncoding
        return (), {key: inputs[key] for key in inputs.keys()}  # noqa: SIM118
    raise RecipeError(
        f"the recipe's inputs are of type {type(inputs).__name__}",
        "return a dict of tensors by argument name, a tuple, or a tensor",
    )


def _input_name(path: Sequence[Any], parameters: Sequence[str]) -> str:
    which, first, *rest = path
    if which.idx == 0:
        name = parameters[first.idx] if first.idx < len(parameters) else f"input{first.idx}"
    else:
        name = str(first.key)
    return ".".join([name, *map(_key_name, rest)])


def _key_name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def output_leaves(output: Any) -> tuple[tuple[str, ...], Tensors]:
    """Names and tensors of a model's output. ExportError when there are none.

    Numbers become tensors without dimensions; None and text are left out.
    """
    _register_caches()
    named = list(_named_tensors(output, ()))
    if not named:
        raise ExportError("the model's output holds no tensor", "return tensors, or a structure of them")
    names = tuple("output" if not n else f"output{n}" if n[0].isdigit() else n for n, _ in named)
    return names, tuple(tensor for _, tensor in named)


def _named_tensors(value: Any, prefix: tuple[str, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        name = (*prefix, *map(_key_name, path))
        tensor = _as_tensor(leaf)
        if tensor is not None:
            yield ".".join(name), tensor
        else:
            for key, part in _parts(leaf).items():
                yield from _named_tensors(part, (*name, key))


def _as_tensor(leaf: Any) -> torch.Tensor | None:
    if isinstance(leaf, torch.Tensor):
        return leaf
    for kinds, dtype in (
        ((bool, torch.SymBool), torch.bool),
        ((int, torch.SymInt), torch.int64),
        ((float, torch.SymFloat), torch.get_default_dtype()),
    ):
        if isinstance(leaf, kinds):
            return torch.scalar_tensor(leaf, dtype=dtype)
    return None


def _parts(leaf: Any) -> dict[str, Any]:
    """The tensors that an object of no known structure holds: a cache, a plain class of somebody's."""
    if isinstance(leaf, (type, str, torch.nn.Module)) or not hasattr(leaf, "__dict__"):
        return {}
    layers = getattr(leaf, "layers", None)
    if isinstance(layers, list):  # a cache of transformers
        return {str(i): _parts(layer) for i, layer in enumerate(layers)}
    held = {name.removesuffix("s"): part for name, part in vars(leaf).items() if name in ("keys", "values")}
    rest = {name: part for name, part in vars(leaf).items() if name not in ("keys", "values") and name[0] != "_"}
    return {n: part for n, part in (held | rest).items() if _holds_tensors(part)}


def _holds_tensors(part: Any) -> bool:
    leaves = pytree.tree_leaves(part)
    return any(isinstance(leaf, torch.Tensor) or bool(_parts(leaf)) for leaf in leaves)


class FlatModule(torch.nn.Module):
    """The model, called with the contract's tensors in order and giving a tuple of tensors."""

    def __init__(self, model: torch.nn.Module, example: FlatInputs) -> None:
        super().__init__()
        self.model = model
        self.example = example

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        args, kwargs = self.example.rebuild(tensors)
        return output_leaves(self.model(*args, **kwargs))[1]


def specs(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Specs of live tensors."""
    return tuple(TensorSpec(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in zip(names, tensors, strict=True))


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


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
    """A saved program, fit to be decomposed: torch loads ranges of derived dimensions among those of symbols."""
    program = torch.export.load(file)
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
