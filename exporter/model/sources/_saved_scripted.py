"""TorchScript as a model to export again."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from exporter.core.contract_records import Contract
from exporter.core.dimensions import NamedDim
from exporter.core.errors import RecipeError
from exporter.model.examples import Inputs, with_dims
from exporter.model.flattening import flatten_inputs
from exporter.model.recipes import FunctionRecipe, Recipe, Source, example_sizes
from exporter.model.sources import _saved_files
from exporter.model.sources._saved_inputs import example_for, from_contract, renamed
from exporter.model.torchscript.interpreter import Interpreter


def recipe(path: Path, contract: Contract | None, source: Source) -> Recipe:
    """Return the recipe of a `.pt`. Raises RecipeError if neither a contract nor --inputs describes the inputs."""
    program = _saved_files.load_scripted(path)
    if contract is None:
        return _from_inputs(path, Interpreter(program), source)
    names = [spec.name for spec in contract.inputs]
    model = Interpreter(program, names, [spec.name for spec in contract.outputs])
    example = example_for(contract, path, source.inputs_file)
    leaves, sizes, bounds = from_contract(renamed(contract, source.dims), example)
    inputs = Inputs(leaves, lambda tensors: dict(zip(names, tensors, strict=True)), sizes)
    return FunctionRecipe(lambda weights: said(model, weights), inputs, bounds)


def said(model: torch.nn.Module, weights: str) -> torch.nn.Module:
    """Label the model with the origin of its weights. Raises RecipeError if random weights were requested."""
    if weights == "random":
        raise RecipeError(
            "--weights random does not apply to a saved program, which has its own weights", "remove --weights"
        )
    model.exporter_weights = "the file's"  # type: ignore[assignment]
    return model


def _from_inputs(path: Path, model: Interpreter, source: Source) -> Recipe:
    inputs_file = source.inputs_file
    taken = ", ".join(argument.name for argument in model.arguments)
    if not inputs_file:
        raise RecipeError(
            f"{path} records only the names of its inputs ({taken}), not their shapes and types",
            _saved_files.HOW_TO_SAVE,
        )
    given = _by_name(model, _saved_files.load_tensors(Path(inputs_file)), taken)
    fixed = FunctionRecipe(functools.partial(said, model), lambda: given, {})
    if source.dims:
        return with_dims(fixed, model, source.dims)
    guess = _first_dimensions(model, given)
    recipe = with_dims(fixed, model, guess) if guess else fixed
    reason = _why_fixed(model, given, recipe, guess)
    if not reason:
        return recipe

    def load(weights: str) -> torch.nn.Module:
        warnings.warn(f"every size is fixed: {reason}", stacklevel=2)
        return said(model, weights)

    return FunctionRecipe(load, lambda: given, {})


def _by_name(model: Interpreter, given: Any, taken: str) -> dict[str, Any]:
    """Return saved inputs by argument name. Raises RecipeError if they do not fit the program's arguments."""
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


def _first_dimensions(model: Interpreter, given: Any) -> list[NamedDim]:
    """Guess the batch dimensions: every dimension 0 that is as large as the first tensor's."""
    flat = flatten_inputs(model, given)
    sizes = {name: len(t) for name, t in zip(flat.names, flat.tensors, strict=True) if t.dim()}
    return [NamedDim("batch", name, 0) for name, size in sizes.items() if size == next(iter(sizes.values()))]


def _why_fixed(model: Interpreter, given: Mapping[str, Any], recipe: Recipe, guess: Sequence[NamedDim]) -> str:
    """Return why the guessed batch is fixed, or "" if the program runs at batch + 1 and its output shapes change."""
    size = example_sizes(recipe.inputs).get("batch", 0)
    tried = f"with dimension 0 of {' and '.join(dim.input for dim in guess)} as the batch,"
    elsewhere = "if the batch is another dimension, give --dim batch=INPUT:AXIS"
    with torch.no_grad():
        try:
            before = model(**given)
        except Exception as error:
            raise RecipeError(
                f"the program does not run on --inputs: {_first_line(error)}", "save other inputs"
            ) from error
        if not guess:
            return "no input has a dimension"
        try:
            after = model(**recipe.inputs(batch=size + 1))
        except Exception as error:  # a program may raise anything at an unsupported size
            return f"{tried} the program does not run at batch {size + 1} ({_first_line(error)}); {elsewhere}"
    if _shapes(before) == _shapes(after):
        return f"{tried} its outputs have the same shapes at batch {size + 1} as at {size}; {elsewhere}"
    return ""


def _shapes(output: Any) -> list[torch.Size]:
    return [leaf.shape for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _first_line(error: Exception) -> str:
    """Return the error line that TorchScript's interpreter prints after its listing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else type(error).__name__)[
        :200
    ]
