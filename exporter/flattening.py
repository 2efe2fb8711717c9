"""From any model to a flat one: named tensors in, a tuple of named tensors out.

Keyword arguments, dicts, ModelOutputs, nested tuples and constants among the inputs are folded away here, once, so
that no target has to know of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exporter.errors import ExportError, RecipeError
from exporter.records import TensorSpec
from exporter.serialization import LARGEST

Tensors = tuple[torch.Tensor, ...]


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
    args, kwargs = as_call(inputs)
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


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of what a recipe's inputs() gave. RecipeError where it is none of the known forms."""
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
