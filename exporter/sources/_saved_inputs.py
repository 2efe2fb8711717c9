"""Example inputs at any size, made from one example of which it is known how its dimensions follow the sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from exporter.contract import enforce, nearest
from exporter.errors import ContractError, RecipeError
from exporter.expressions import Expression
from exporter.flattening import specs
from exporter.records import Contract, TensorSpec
from exporter.sources import _saved_files

Dim = Callable[[Mapping[str, int]], int]
Bounds = dict[str, tuple[int, int, int]]  # (min, max, step)
GOLDEN = "golden.pt"
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


def from_contract(contract: Contract, example: Sequence[torch.Tensor]) -> tuple[list[Leaf], dict[str, int], Bounds]:
    """Leaves, the example's sizes, and their bounds, as a contract has them."""
    leaves, sizes = list[Leaf](), dict[str, int]()
    for spec, tensor in zip(contract.inputs, example, strict=True):
        expressions = {axis: Expression.parse(dim) for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
        leaves.append(Leaf(tensor, {axis: _follow(expression) for axis, expression in expressions.items()}))
        for axis, expression in expressions.items():
            found = expression.solve(tensor.shape[axis])
            if found is not None:
                sizes.setdefault(expression.name, found)
    known = {name: bounds for name, bounds in contract.symbols.items() if name in sizes}
    return (
        leaves,
        {name: sizes[name] for name in known},
        {name: (b.min, b.max, b.multiple_of) for name, b in known.items()},
    )


def _follow(expression: Expression) -> Dim:
    return lambda sizes: expression.at(sizes[expression.name])


def example_for(contract: Contract, path: Path, inputs_file: str) -> Sequence[torch.Tensor]:
    """Tensors that fit the contract: of --inputs, of the golden beside the file, or made up where all are floating.

    RecipeError when those of --inputs do not fit, and where nothing tells which integers are valid.
    """
    if inputs_file:
        given = _in_order(_saved_files.load_tensors(Path(inputs_file)), contract)
        try:
            enforce(contract, specs([spec.name for spec in contract.inputs], given))
        except ContractError as error:
            raise RecipeError(f"--inputs {inputs_file} does not fit the program: {error}", "save others") from error
        return given
    found = of_golden(contract, path)
    if found is not None:
        return found
    integral = [spec.name for spec in contract.inputs if not spec.dtype.startswith(("float", "bfloat"))]
    if integral:
        raise RecipeError(
            f"nothing tells which values {', '.join(integral)} may have",
            f"put the bundle's {GOLDEN} beside {path.name}, or {_saved_files.HOW_TO_SAVE}",
        )
    return [_made_up(spec, contract) for spec in contract.inputs]


def _in_order(given: Any, contract: Contract) -> list[torch.Tensor]:
    names = [spec.name for spec in contract.inputs]
    held = given if isinstance(given, dict) else dict(zip(names, _saved_files.as_list(given), strict=False))
    missing = [name for name in names if not isinstance(held.get(name), torch.Tensor)]
    if missing:
        raise RecipeError(f"--inputs has no tensor {', '.join(missing)}", f"the program takes {', '.join(names)}")
    return [held[name] for name in names]


def of_golden(contract: Contract, path: Path) -> list[torch.Tensor] | None:
    """The example of the golden (docs/formats.md) beside an artifact, where there is one that fits its contract."""
    try:
        tensors = list(torch.load(path.with_name(GOLDEN), weights_only=True, map_location="cpu")["cases"][0]["inputs"])
        enforce(contract, specs([spec.name for spec in contract.inputs], tensors))
    except Exception:  # another program's, or no golden at all
        return None
    return tensors


def _made_up(spec: TensorSpec, contract: Contract) -> torch.Tensor:
    shape = []
    for dim in spec.shape:
        expression = Expression.parse(dim) if isinstance(dim, str) else None
        bounds = contract.symbols[expression.name] if expression else None
        shape.append(expression.at(nearest(2, bounds)) if expression and bounds else dim or 1)
    return torch.randn([int(size) for size in shape]).to(getattr(torch, spec.dtype))
