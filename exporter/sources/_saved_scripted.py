"""TorchScript as a model to export again."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exporter.errors import RecipeError
from exporter.examples import Dim, Inputs, Leaf, with_dims
from exporter.flattening import output_leaves
from exporter.interpreter import Interpreter
from exporter.recipes import FunctionRecipe, Recipe, Source
from exporter.records import Contract
from exporter.sources import _saved_files
from exporter.sources._saved_inputs import example_for, from_contract, renamed

BATCHES = (1, 64)


def recipe(path: Path, contract: Contract | None, source: Source) -> Recipe:
    """The recipe of a `.pt`. RecipeError when neither a contract nor --inputs tells what the program takes."""
    program = _saved_files.load_scripted(path)
    if contract is None:
        return _from_inputs(path, Interpreter(program), source)
    contract = renamed(contract, source.dims)
    names = [spec.name for spec in contract.inputs]
    model = Interpreter(program, names, [spec.name for spec in contract.outputs])
    leaves, sizes, bounds = from_contract(contract, example_for(contract, path, source.inputs_file))
    inputs = Inputs(leaves, lambda tensors: dict(zip(names, tensors, strict=True)), sizes)
    return FunctionRecipe(lambda weights: said(model, weights), inputs, bounds)


def said(model: torch.nn.Module, weights: str) -> torch.nn.Module:
    """The model with word of where its weights are from. RecipeError where random ones were asked for."""
    if weights == "random":
        raise RecipeError("a saved program has its own weights", "leave --weights out")
    model.exporter_weights = "the file's"  # type: ignore[assignment]
    return model


def _from_inputs(path: Path, model: Interpreter, source: Source) -> Recipe:
    inputs_file = source.inputs_file
    taken = ", ".join(argument.name for argument in model.arguments)
    if not inputs_file:
        raise RecipeError(
            f"{path} does not say what its inputs are like, only their names: {taken}", _saved_files.HOW_TO_SAVE
        )
    given = _by_name(model, _saved_files.load_tensors(Path(inputs_file)), taken)
    if source.dims:
        return with_dims(FunctionRecipe(functools.partial(said, model), lambda: given, {}), model, source.dims)
    example, spec = pytree.tree_flatten(given)
    grown, reason = _grown(model, example, spec)
    dims: dict[int, Dim] = {0: lambda sizes: sizes["batch"]}
    leaves = [Leaf(leaf, dims if grown and _is_batched(leaf, example) else {}) for leaf in example]
    sizes = {"batch": grown - 1} if grown else {}
    inputs = Inputs(leaves, lambda values: pytree.tree_unflatten(values, spec), sizes)

    def load(weights: str) -> torch.nn.Module:
        if not grown:
            warnings.warn(f"every size is fixed: {reason}", stacklevel=2)
        return said(model, weights)

    return FunctionRecipe(load, inputs, {"batch": BATCHES} if grown else {})


def _by_name(model: Interpreter, given: Any, taken: str) -> dict[str, Any]:
    """Saved inputs by the arguments' names. RecipeError when they do not fit the program's arguments."""
    names = [argument.name for argument in model.arguments]
    if not isinstance(given, dict):
        values = _saved_files.as_list(given)
        given = dict(zip(names, values, strict=False)) if len(values) <= len(names) else dict(enumerate(values))
    named: dict[str, Any] = given
    required = {argument.name for argument in model.arguments if argument.required}
    wrong = sorted(required - named.keys()) + sorted(str(name) for name in named.keys() - set(names))
    if wrong:
        raise RecipeError(f"--inputs does not fit the program: {', '.join(wrong)}", f"it takes {taken}")
    return named


def _is_batched(leaf: Any, example: Sequence[Any]) -> bool:
    """Whether its first dimension is as large as the first tensor's."""
    first = next((other for other in example if isinstance(other, torch.Tensor) and other.dim()), None)
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and first is not None and len(leaf) == len(first)


def _grown(model: Interpreter, example: Sequence[Any], spec: Any) -> tuple[int, str]:
    """The batch after the example's, where the program takes it and its outputs follow; else 0, and why."""
    batched = [leaf for leaf in example if _is_batched(leaf, example)]
    if not batched:
        return 0, "no input has a first dimension"
    size = len(batched[0])
    larger = [torch.cat([leaf, leaf[:1]]) if _is_batched(leaf, example) else leaf for leaf in example]
    with torch.no_grad():
        try:
            before = [t.shape for t in output_leaves(model(**pytree.tree_unflatten(list(example), spec)))[1]]
        except Exception as error:
            raise RecipeError(f"the program does not run on --inputs: {_first_line(error)}", "save others") from error
        try:
            after = [t.shape for t in output_leaves(model(**pytree.tree_unflatten(larger, spec)))[1]]
        except Exception as error:  # whatever a program raises at a size that it was not made for
            return 0, f"the program does not run at batch {size + 1}: {_first_line(error)}"
    if before == after:
        return 0, f"its outputs at batch {size + 1} are as large as at {size}"
    return size + 1, ""


def _first_line(error: Exception) -> str:
    """What TorchScript's interpreter says at the end, behind its listing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else type(error).__name__)[
        :200
    ]
