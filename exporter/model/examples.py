"""Example inputs at any size, derived from one example whose dimensions are known functions of the sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from exporter.core import dimensions
from exporter.core.dimensions import NamedDim
from exporter.core.errors import RecipeError
from exporter.core.probing import nearest
from exporter.core.size_range import Range
from exporter.model.flattening import FlatInputs, flatten_inputs
from exporter.model.recipes import OPTIONAL, FunctionRecipe, Recipe, example_sizes

Dim = Callable[[Mapping[str, int]], int]
FEW = 2  # a floating-point tensor with at most this many distinct values is a mask


@dataclass(frozen=True)
class Leaf:
    """One input: a tensor with its dynamic dimensions by axis, or a constant."""

    example: Any
    dims: Mapping[int, Dim] = field(default_factory=dict)

    def at(self, sizes: Mapping[str, int]) -> Any:
        """Return the example at other sizes."""
        if not isinstance(self.example, torch.Tensor):
            return self.example
        shape = list(self.example.shape)
        for axis, dim in self.dims.items():
            shape[axis] = dim(sizes)
        return like(self.example, shape)


class Inputs:
    """A recipe's `inputs`. It takes every size as a keyword; the defaults are the example's sizes."""

    def __init__(self, leaves: Sequence[Leaf], rebuild: Callable[[list[Any]], Any], sizes: Mapping[str, int]) -> None:
        self._leaves, self._rebuild, self._sizes = tuple(leaves), rebuild, dict(sizes)
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=size) for name, size in sizes.items()]
        )

    def __call__(self, **sizes: int) -> Any:
        wanted = self._sizes | sizes
        return self._rebuild([leaf.at(wanted) for leaf in self._leaves])


def like(example: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor of another shape that is as valid an input as the example.

    Integers, booleans and masks repeat or truncate the example's values, so that indices stay in range. Other
    floating-point tensors are drawn from the global generator with the example's mean, standard deviation and bounds.
    """
    if not example.is_floating_point() or _is_mask(example):
        return _repeated(example, shape)
    values = example.double()
    drawn = torch.randn(tuple(shape), dtype=torch.float64) * values.std(correction=0) + values.mean()
    return drawn.clamp(values.min(), values.max()).to(example.dtype)


def _is_mask(example: torch.Tensor) -> bool:
    return not bool(example.isfinite().all()) or example.unique().numel() <= FEW


def _repeated(example: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if not example.numel():
        return torch.zeros(tuple(shape), dtype=example.dtype)
    for axis, (size, old) in enumerate(zip(shape, example.shape, strict=True)):
        if size != old:
            example = example.index_select(axis, torch.arange(size) % old)
    return example.clone()


def with_dims(recipe: Recipe, model: torch.nn.Module, dims: Sequence[NamedDim]) -> Recipe:
    """Return the recipe with the dimensions that the user named made dynamic. Raises RecipeError if they cannot be."""
    if known := example_sizes(recipe.inputs):
        raise RecipeError(
            f"--dim is for inputs of a fixed size, but inputs() takes {', '.join(known)}", "give --size NAME=MIN..MAX"
        )
    flat = flatten_inputs(model, recipe.inputs())
    leaves, sizes = named(dict(zip(flat.names, flat.tensors, strict=True)), dims)
    ranges = {name: dimensions.bounds(dims, name, size) for name, size in sizes.items()}
    sizes = {
        name: nearest(size, Range(*ranges[name])) for name, size in sizes.items()
    }  # the example's size may be outside the range
    inputs = Inputs(leaves, lambda tensors: _as_given(flat, tensors), sizes)
    own: dict[str, Any] = {name: getattr(recipe, name, None) for name in OPTIONAL}
    return FunctionRecipe(recipe.load, inputs, ranges, getattr(recipe, "chooses_weights", True), **own)


def _as_given(flat: FlatInputs, tensors: list[Any]) -> Any:
    """Return the inputs in the form that a recipe returns them: args or kwargs, of which one is empty."""
    args, kwargs = flat.rebuild(tensors)
    return kwargs or args


def named(example: Mapping[str, torch.Tensor], dims: Sequence[NamedDim]) -> tuple[list[Leaf], dict[str, int]]:
    """Return leaves whose named dimensions are dynamic, and the example's sizes.

    Raises RecipeError if a dimension does not exist, or if dimensions of one name have different sizes.
    """
    ranks = {name: tensor.dim() for name, tensor in example.items()}
    sizes: dict[str, tuple[int, NamedDim]] = {}
    for dim in dims:
        if dim.axis >= ranks.get(dim.input, 0):
            raise no_such(dim, ranks)
        size = example[dim.input].shape[dim.axis]
        first, of = sizes.setdefault(dim.name, (size, dim))
        if first != size:
            raise RecipeError(
                f"{dim.name} is {first} in dimension {of.axis} of {of.input}, and {size} in {dim.axis} of {dim.input}",
                "give these dimensions different names, or save inputs in which they are equal",
            )
    moving: dict[str, dict[int, Dim]] = {name: {} for name in example}
    for dim in dims:
        moving[dim.input][dim.axis] = _follow(dim.name)
    return [Leaf(tensor, moving[name]) for name, tensor in example.items()], {n: s for n, (s, _) in sizes.items()}


def _follow(name: str) -> Dim:
    return lambda sizes: sizes[name]


def no_such(dim: NamedDim, ranks: Mapping[str, int]) -> RecipeError:
    """Return the error for a dimension that no input has; `ranks` are the ranks of the inputs."""
    known = ", ".join(f"{name} with {rank}" for name, rank in ranks.items())
    return RecipeError(f"--dim {dim}: no input has that dimension", f"the inputs and their dimensions are {known}")


def not_free(dim: NamedDim, found: Any) -> RecipeError:
    """Return the error for a dimension that a program fixes or derives from another."""
    said = f"is derived from another size, {found}" if isinstance(found, str) else f"is fixed at {found}"
    return RecipeError(
        f"--dim {dim}: the program was saved for certain sizes, and dimension {dim.axis} of {dim.input} {said}",
        "name a dynamic dimension, or export the model again",
    )


def one_size(symbol: str, name: str, other: str) -> RecipeError:
    """Return the error for two names given to one size of the program."""
    return RecipeError(f"{name} and {other} are the same size of the program, {symbol}", "give them one name")


def require_distinct(names: Sequence[str]) -> None:
    """Raise RecipeError if two sizes of a program would have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"two sizes of the program would be named {name}", "name the other one with --dim too")


def within(dim: NamedDim, promised: Range) -> Range:
    """Return the dimension's range. Raises RecipeError if it exceeds the range that the program promises."""
    assert dim.bounds is not None
    if dim.bounds.min < promised.min or dim.bounds.max > promised.max:
        raise RecipeError(f"--dim {dim}: the program accepts {promised} there", "choose a range within it")
    return promised.within(dim.bounds.min, dim.bounds.max)
