"""Flattening a model: named tensors in, a tuple of named tensors out.

Keyword arguments, dicts, ModelOutputs, nested tuples and constant inputs are handled here, so that targets need not
know about them.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exporter.core.contract_records import TensorSpec
from exporter.core.errors import Blame, ExportError, RecipeError, UsageError
from exporter.core.limits import LARGEST
from exporter.model import differentiation, structure
from exporter.model.differentiation import Recording
from exporter.model.tensors import Tensors, unusual_form


@dataclass(frozen=True)
class FlatInputs:
    """Flattened inputs: tensors and constants by name, and the call that they were taken from.

    `settings` are constants inside objects, which no contract lists.
    """

    names: tuple[str, ...]
    tensors: Tensors
    constants: dict[str, Any]
    settings: dict[str, Any]
    call: tuple[tuple[Any, ...], dict[str, Any]]

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) with these tensors in place of the example's."""
        given = iter(tensors)
        args, kwargs = self.call
        return tuple(_filled(value, given) for value in args), {k: _filled(value, given) for k, value in kwargs.items()}

    def difference(self, other: FlatInputs) -> str:
        """Return the first name whose constant differs or that only one of the two has; "" if there is none."""
        if self.names != other.names:
            return next(iter(sorted({*self.names} ^ {*other.names})), "the order of the inputs")
        mine, theirs = (one.constants | one.settings for one in (self, other))
        return next(
            (name for name in mine | theirs if not _equal(mine.get(name, _ABSENT), theirs.get(name, _ABSENT))), ""
        )


_ABSENT = object()
_CONSTANTS = (str, bytes, enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Resolve the lazy conjugate and negative bits, which compiled code does not support."""
    return tensor.resolve_conj().resolve_neg()


def flatten_inputs(model: torch.nn.Module, inputs: Any) -> FlatInputs:
    """Flatten what a recipe's inputs() returned. Raises RecipeError if it contains no tensor."""
    args, kwargs = as_call(inputs)
    called = model if hasattr(model, "__signature__") else model.forward
    parameters = [p.name for p in inspect.signature(called).parameters.values()]
    named = [(parameters[i] if i < len(parameters) else f"input{i}", value) for i, value in enumerate(args)]
    tensors: dict[str, torch.Tensor] = {}
    constants: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in (*named, *((str(key), value) for key, value in kwargs.items())):
        for path, leaf, in_object in _leaves(value, name):
            if path in (*tensors, *constants, *settings):
                raise RecipeError(f"the recipe has two inputs that are called {path}", "rename a key of a dict")
            if isinstance(leaf, torch.Tensor):
                if form := unusual_form(leaf):
                    remedy = "give its values and indices, or a dense tensor; keep a constant matrix as a buffer"
                    raise RecipeError(f"the input {path} is {form}, and artifacts take only dense ones", remedy)
                tensors[path] = plain(leaf.detach())
            else:
                (settings if in_object else constants)[path] = leaf
    if not tensors:
        raise RecipeError(
            f"the recipe's inputs are of type {type(inputs).__name__} and contain no tensor",
            "return a dict of tensors by argument name",
        )
    return FlatInputs(tuple(tensors), tuple(tensors.values()), constants, settings, (args, kwargs))


def _leaves(
    value: Any, name: str, in_object: bool = False, inside: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any, bool]]:
    """Yield every leaf with its name and whether it is inside an object that is not a container."""
    if structure.holds_itself(value, inside):
        raise RecipeError(f"the recipe's input {name} contains itself", "give tensors, or a structure of them")
    items = structure.contained(value)
    if items is None and structure.holds_tensors(value) and not isinstance(value, torch.Tensor):
        items, in_object = structure.attributes(value), True
    if items is None:
        yield name, value, in_object
    for key, item in items or ():
        yield from _leaves(item, f"{name}.{key}", in_object, (*inside, value))


def _filled(value: Any, given: Iterator[Any]) -> Any:
    """Return a copy of the value in which each tensor is replaced by the next item of `given`."""
    if isinstance(value, torch.Tensor):
        return next(given)
    items = structure.contained(value)
    if items is not None:
        return structure.with_items(value, [_filled(item, given) for _, item in items])
    if not structure.holds_tensors(value):
        return value
    return structure.with_attributes(value, [_filled(item, given) for _, item in structure.attributes(value)])


def _equal(one: Any, other: Any) -> bool:
    """Return whether two constants are equal; objects that do not define equality count as equal by class."""
    if type(one) is not type(other):
        return False
    if "__eq__" not in {name for cls in type(one).__mro__[:-1] for name in vars(cls)}:
        return True
    found = one == other
    return bool(found.all()) if hasattr(found, "all") and hasattr(found, "shape") else bool(found)


def constants(flat: FlatInputs) -> dict[str, bool | int | float | str]:
    """Return the constants for a contract: JSON values unchanged, others as repr(); None is omitted."""
    return {
        name: leaf
        if isinstance(leaf, (bool, int, str)) or (isinstance(leaf, float) and abs(leaf) <= LARGEST)
        else repr(leaf)
        for name, leaf in flat.constants.items()
        if leaf is not None
    }


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (args, kwargs) for what a recipe's inputs() returned. Raises RecipeError for an unsupported type."""
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


def output_leaves(output: Any, leave_out: Collection[str] = ()) -> tuple[tuple[str, ...], Tensors]:
    """Return names and tensors of a model's output, without the items named in `leave_out` and their content.

    Numbers become zero-dimensional tensors; None is omitted, and objects without tensors. Raises ExportError if nothing
    remains, or for data that no artifact can return.
    """
    named = list(_outputs(output, "", frozenset(leave_out)))
    if not named:
        remedy = "return tensors, or a structure of them"
        raise ExportError("the model's output holds no tensor", remedy, Blame("output-not-a-tensor"))
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise _refused(twice, "is there twice, as a key and as an item of another output", "rename a key")
    return tuple(name or "output" for name in names), tuple(tensor for _, tensor in named)


def _outputs(
    value: Any, name: str, leave_out: Collection[str], inside: tuple[Any, ...] = ()
) -> Iterator[tuple[str, torch.Tensor]]:
    if name in leave_out or structure.holds_itself(value, inside):
        return
    tensor = _as_tensor(value, name)
    if tensor is not None:
        if form := unusual_form(tensor):
            raise _refused(name, f"is {form}, and artifacts return only dense ones", "return tensor.to_dense()")
        yield name, tensor
        return
    items = structure.contained(value)
    if items is None:
        _refuse_data(value, name, inside)
        # A quantized cache keeps its tensors in private attributes.
        whole = any(map(structure.is_cache, (*inside, value)))
        items = [(key, item) for key, item in structure.attributes(value) if whole or key[0] != "_"]
        items = [(key, item) for key, item in items if structure.holds_tensors(item)]
    for key, item in items:
        yield from _outputs(item, output_name(name, key), leave_out, (*inside, value))


def _refused(name: str, what: str, advice: str, blame: Blame | None = None) -> ExportError:
    return ExportError(
        " ".join(filter(None, ("the model's output", name, what))),
        f"{advice}, or omit it with --leave-out {name or 'NAME'}",
        blame,
    )


def output_name(name: str, key: str) -> str:
    """Return the name of an item of the output called `name`; the whole output is called ""."""
    return f"{name}.{key}" if name else f"output{key}" if key[:1].isdigit() else key


def require_named(output: Any, leave_out: Collection[str]) -> None:
    """Raise UsageError for a name in `leave_out` that matches no output."""
    if unknown := set(leave_out) - set(_names(output, "")):
        top = structure.contained(output) or structure.attributes(output)
        raise UsageError(
            f"--leave-out {min(unknown)}: the model has no output of that name",
            f"it returns {', '.join(output_name('', key) for key, item in top if item is not None) or 'one tensor'}",
        )


def _names(value: Any, name: str, inside: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the name of every item, including containers."""
    yield name
    if not structure.holds_itself(value, inside):
        items = structure.contained(value)
        for key, item in structure.attributes(value) if items is None else items:
            yield from _names(item, output_name(name, key), (*inside, value))


def _refuse_data(value: Any, name: str, inside: Sequence[Any]) -> None:
    """Raise ExportError for data that every artifact would lack. Constants in objects are settings, not data."""
    refused = isinstance(value, (complex, Iterator)) or hasattr(value, "__array__")
    if isinstance(value, _CONSTANTS):
        refused = bool(name) and all(structure.contained(outer) is not None for outer in inside)
    if refused or (isinstance(value, Set) and any(_as_tensor(item, name) is not None for item in value)):
        what, advice = f"is of type {type(value).__name__}", "return tensors, or lists and dicts of them"
        raise _refused(name, f"{what}, which no artifact can return", advice, Blame("output-not-a-tensor"))


def _as_tensor(leaf: Any, name: str) -> torch.Tensor | None:
    if isinstance(leaf, torch.Tensor):
        return leaf
    for kinds, dtype in (
        ((bool, torch.SymBool), torch.bool),
        ((int, torch.SymInt), torch.int64),
        ((float, torch.SymFloat), torch.get_default_dtype()),
    ):
        if isinstance(leaf, kinds):
            if type(leaf) is int and not -(1 << 63) <= leaf < 1 << 63:
                raise _refused(name, "is an integer beyond the 64 bits of a tensor", "return a float")
            number = int(leaf) if type(leaf) is bool else leaf  # torch.jit.trace cannot record scalar_tensor of a bool
            return torch.scalar_tensor(number, dtype=dtype)
    return None


class FlatGraph(torch.nn.Module):
    """A graph in the form of a FlatModule: it takes any number of tensors, and returns a tuple of tensors."""

    def __init__(self, graph: torch.nn.Module) -> None:
        super().__init__()
        self.inner = graph

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        return tuple(self.inner(*tensors))


class FlatModule(torch.nn.Module):
    """The model as a module that takes the contract's tensors in order and returns a tuple of tensors."""

    def __init__(self, model: torch.nn.Module, example: FlatInputs, leave_out: Collection[str] = ()) -> None:
        super().__init__()
        self.model = model
        self.example = example
        self.leave_out = tuple(leave_out)

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        args, kwargs = self.example.rebuild(tensors)
        return output_leaves(self.answer(*args, **kwargs), self.leave_out)[1]

    def answer(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model. Errors raised in this frame come from the model itself."""
        recording = differentiation.needed(self.model)
        try:
            if not recording:
                return self.model(*args, **kwargs)
            return differentiation.recorded(lambda: self.model(*args, **kwargs), self.model, recording)
        except RuntimeError as error:
            if recording is Recording.WEIGHTS or not differentiation.lacks_gradients(error):
                raise
            differentiation.note(self.model, Recording(recording + 1))
        again = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), (args, kwargs))
        return self.answer(*again[0], **again[1])


def specs(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Return the specs of tensors."""
    return tuple(TensorSpec(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in zip(names, tensors, strict=True))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype: `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")
