"""Example inputs at any size, made from one example of which it is known how its dimensions follow the sizes."""

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
FEW = 2  # a floating tensor of so few values is a mask


@dataclass(frozen=True)
class Leaf:
    """One of the inputs: a tensor, with the dimensions that follow sizes by their axis; or a constant."""

    example: Any
    dims: Mapping[int, Dim] = field(default_factory=dict)

    def at(self, sizes: Mapping[str, int]) -> Any:
        """The example at other sizes."""
        if not isinstance(self.example, torch.Tensor):
            return self.example
        shape = list(self.example.shape)
        for axis, dim in self.dims.items():
            shape[axis] = dim(sizes)
        return like(self.example, shape)


class Inputs:
    """A recipe's `inputs`: takes every size as a keyword, with the example's own as its default."""

    def __init__(self, leaves: Sequence[Leaf], rebuild: Callable[[list[Any]], Any], sizes: Mapping[str, int]) -> None:
        self._leaves, self._rebuild, self._sizes = tuple(leaves), rebuild, dict(sizes)
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=size) for name, size in sizes.items()]
        )

    def __call__(self, **sizes: int) -> Any:
        wanted = self._sizes | sizes
        return self._rebuild([leaf.at(wanted) for leaf in self._leaves])


def like(example: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of another shape that is as valid an input as the example.

    Integers, booleans and masks are the example's own, repeated or cut, so that indices stay inside what they index.
    Other floating tensors are drawn anew, under the global seed, with the example's mean, spread and bounds.
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
    """The recipe of one example, with the dimensions that the user named moving. RecipeError where they cannot."""
    if known := example_sizes(recipe.inputs):
        raise RecipeError(
            f"--dim is for inputs of one size, and inputs() takes {', '.join(known)}", "give --size NAME=MIN..MAX"
        )
    flat = flatten_inputs(model, recipe.inputs())
    leaves, sizes = named(dict(zip(flat.names, flat.tensors, strict=True)), dims)
    ranges = {name: dimensions.bounds(dims, name, size) for name, size in sizes.items()}
    sizes = {name: nearest(size, Range(*ranges[name])) for name, size in sizes.items()}  # else out of its own range
    inputs = Inputs(leaves, lambda tensors: _as_given(flat, tensors), sizes)
    own: dict[str, Any] = {name: getattr(recipe, name, None) for name in OPTIONAL}
    return FunctionRecipe(recipe.load, inputs, ranges, getattr(recipe, "chooses_weights", True), **own)


def _as_given(flat: FlatInputs, tensors: list[Any]) -> Any:
    """The inputs in the form that a recipe gives them: one of the two is empty."""
    args, kwargs = flat.rebuild(tensors)
    return kwargs or args


def named(example: Mapping[str, torch.Tensor], dims: Sequence[NamedDim]) -> tuple[list[Leaf], dict[str, int]]:
    """Leaves whose named dimensions move, and the example's sizes. RecipeError for what is not there, or not one."""
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
                "give these dimensions names of their own, or inputs in which they are equal",
            )
    moving: dict[str, dict[int, Dim]] = {name: {} for name in example}
    for dim in dims:
        moving[dim.input][dim.axis] = _follow(dim.name)
    return [Leaf(tensor, moving[name]) for name, tensor in example.items()], {n: s for n, (s, _) in sizes.items()}


def _follow(name: str) -> Dim:
    return lambda sizes: sizes[name]


def no_such(dim: NamedDim, ranks: Mapping[str, int]) -> RecipeError:
    """The error for a dimension of no input; `ranks` are those of the inputs."""
    known = ", ".join(f"{name} with {rank}" for name, rank in ranks.items())
    return RecipeError(f"--dim {dim}: no input has that dimension", f"the inputs and their dimensions are {known}")


def not_free(dim: NamedDim, found: Any) -> RecipeError:
    """The error for a dimension that a program holds fast, or that follows another."""
    said = f"follows another size there, {found}" if isinstance(found, str) else f"is fixed at {found} there"
    return RecipeError(
        f"--dim {dim}: the program was saved for certain sizes, and dimension {dim.axis} of {dim.input} {said}",
        "name a dimension that it leaves free, or export the model again",
    )


def one_size(symbol: str, name: str, other: str) -> RecipeError:
    """The error for two names of what the program has as one size."""
    return RecipeError(f"{name} and {other} are one size of the program, {symbol}", "give them one name")


def require_distinct(names: Sequence[str]) -> None:
    """RecipeError where two sizes of a program would have one name."""
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"two sizes of the program would be {name}", "give the other one a name too: --dim")


def within(dim: NamedDim, promised: Range) -> Range:
    """The dimension's range. RecipeError where it goes beyond what the program promises."""
    assert dim.bounds is not None
    if dim.bounds.min < promised.min or dim.bounds.max > promised.max:
        raise RecipeError(f"--dim {dim}: the program takes {promised} there", "promise no more than that")
    return promised.within(dim.bounds.min, dim.bounds.max)
