"""A model loaded as a job says, and the contract that trying it at several sizes shows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from exporter import checkpoint, contract, eager, flattening, places, recipes
from exporter.errors import RecipeError
from exporter.expressions import Expression
from exporter.job import Job
from exporter.records import Contract, Range
from exporter.session import server


@dataclass
class Loaded:
    """A recipe with its model, loaded in this process."""

    recipe: recipes.Recipe
    module: flattening.FlatModule
    names: tuple[str, ...]
    base: dict[str, int]
    symbols: dict[str, Range]
    warnings: list[str] = field(default_factory=list)

    def inputs(self, sizes: dict[str, int], seed: int) -> flattening.Tensors:
        """Flat CPU inputs; the same for the same sizes and seed."""
        flat, example = _flat_inputs(self.recipe, self.module.model, sizes, seed), self.module.example
        if flat.constants != example.constants or flat.spec != example.spec:
            raise RecipeError(
                f"inputs() at {contract.describe(sizes)} differs from the example in more than tensors' sizes",
                "what changes with a size must be a tensor's dimension; everything else is a constant",
            )
        return flat.tensors

    def run(self, sizes: dict[str, int], device: str) -> tuple[tuple[str, ...], flattening.Tensors]:
        """Names and values of the outputs at these sizes; an output that bears an input's name gets one of its own."""
        flat = _flat_inputs(self.recipe, self.module.model, sizes, 0)
        args, kwargs = flat.rebuild([t.to(device) for t in flat.tensors])
        with torch.no_grad(), eager.naming(contract.describe(sizes)):
            names, tensors = flattening.output_leaves(self.module.model(*args, **kwargs))
        return tuple(f"output.{name}" if name in self.names else name for name in names), tensors


def _flat_inputs(
    recipe: recipes.Recipe, model: torch.nn.Module, sizes: dict[str, int], seed: int
) -> flattening.FlatInputs:
    torch.manual_seed(seed)
    try:
        inputs = recipe.inputs(**sizes)
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(
            f"inputs() fails at {contract.describe(sizes)}: {type(error).__name__}: {error}", "mend the recipe"
        ) from error
    return flattening.flatten_inputs(model, inputs)


_held: list[tuple[Job, Loaded]] = []  # what this process, or the one that it was forked from, has loaded for others


def hold(job: Job) -> None:
    """Load recipe and model for the jobs that will be forked from this process."""
    _held[:] = [(job, load_model(job))]


def load_model(job: Job) -> Loaded:
    """Recipe and model as the job says, in eval mode, on its device: those that are held, or else load them.

    RecipeError when the recipe is at fault.
    """
    server.configure(job.options)
    for held, loaded in _held:
        if replace(held, options=job.options) == job and held.options.device == job.options.device:
            return loaded
    recipe = recipes.load(job.source)
    base, symbols = contract.choose_sizes(
        recipes.example_sizes(recipe.inputs), recipes.ranges(recipe), job.sizes, job.ranges, job.dynamic
    )
    torch.manual_seed(job.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        replaced = job.source.checkpoint and job.source.place != "saved"  # a saved program has no random weights
        model = _load_weights(recipe, "random" if replaced else job.weights)
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    if job.weights == "pretrained" and not getattr(recipe, "chooses_weights", True):
        said.append("--weights pretrained changes nothing: the recipe's function makes its own weights")
    if job.source.checkpoint:
        said += checkpoint.load_into(model, job.source.checkpoint, job.source.allow_partial)
    model = model.eval().to(job.options.device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    example = _flat_inputs(recipe, model, base, 0)
    return Loaded(recipe, flattening.FlatModule(model, example).eval(), example.names, base, symbols, said)


def _load_weights(recipe: recipes.Recipe, weights: str) -> torch.nn.Module:
    try:
        model = recipe.load(weights)
    except RecipeError:
        raise
    except Exception as error:
        remedy = (
            "give --weights random, or fetch the weights first"
            if weights == "pretrained"
            else "mend the recipe, or install what it imports"
        )
        raise RecipeError(f"loading the model fails: {places.named(error)}", remedy) from error
    if not isinstance(model, torch.nn.Module):
        raise RecipeError(f"the recipe's model is of type {type(model).__name__}", "return a torch.nn.Module")
    return model


def find_contract(job: Job, loaded: Loaded) -> Contract:
    """What the inputs and outputs are like at every size, found by trying some. RecipeError for an idle symbol."""

    def probe(sizes: dict[str, int]) -> Any:
        return flattening.specs(loaded.names, loaded.inputs(sizes, 0))

    def probe_outputs(sizes: dict[str, int]) -> Any:
        return flattening.specs(*loaded.run(sizes, job.options.device))

    inputs = contract.probe_shapes(probe, loaded.base, loaded.symbols, to_the_ends=True)
    outputs = contract.probe_shapes(probe_outputs, loaded.base, loaded.symbols)
    loaded.warnings += [
        f"{spec.name} dim {axis} moves in no way that a contract can say; its size is not checked on a call"
        for spec in (*inputs, *outputs)
        for axis, dim in enumerate(spec.shape)
        if dim is None
    ]
    used = {Expression.parse(dim).name for spec in inputs for dim in spec.shape if isinstance(dim, str)}
    idle = [name for name in loaded.symbols if name not in used]
    if idle:
        raise RecipeError(
            f"no input's dimension follows {idle[0]}",
            f"use {idle[0]} in the recipe's inputs, or remove it from its sizes",
        )
    return Contract(
        job.model,
        inputs,
        outputs,
        loaded.symbols,
        device=job.options.device.partition(":")[0],
        torch=torch.__version__.partition("+")[0],
        constants=flattening.constants(loaded.module.example),
    )
