"""The user's own inputs and metric, from a recipe's samples() and metric(). Used only in processes that run recipes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from exporter.core import contract, probing, source_lines
from exporter.core.contract_records import Contract
from exporter.core.errors import ContractError, RecipeError
from exporter.core.parity_records import CaseRecord
from exporter.model import flattening

if TYPE_CHECKING:
    from exporter.model.flattening import FlatInputs
    from exporter.model.recipes import Recipe
    from exporter.model.tensors import Tensors

MOST = 64  # samples used at most


@dataclass(frozen=True)
class Sample:
    """One sample: flat inputs on the CPU, with their sizes."""

    case: CaseRecord
    inputs: Tensors

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by symbol."""
        return self.case.sizes


def given(recipe: Recipe) -> list[Any]:
    """Return the first MOST samples of samples(), or an empty list if the recipe has none.

    Raises RecipeError if samples() fails or returns nothing, or if the recipe has metric() without samples().
    """
    make = getattr(recipe, "samples", None)
    if make is None:
        if getattr(recipe, "metric", None) is not None:
            raise RecipeError(
                "the recipe has metric() but no samples() to evaluate it on",
                "add samples() that returns real inputs",
            )
        return []
    torch.manual_seed(0)
    try:
        found = list(itertools.islice(make(), MOST))
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(
            f"samples() fails: {source_lines.summary(error)}",
            "return an iterable of inputs in the form that inputs() returns",
        ) from error
    if not found:
        raise RecipeError("samples() returns no samples", "return at least one sample, or remove samples()")
    return found


def read(recipe: Recipe, example: FlatInputs, model: torch.nn.Module, promised: Contract) -> list[Sample]:
    """Return the recipe's samples as tensors in the contract's order.

    Raises RecipeError if a sample violates the contract.
    """
    return [_read(index, one, example, model, promised) for index, one in enumerate(given(recipe))]


def _read(index: int, one: Any, example: FlatInputs, model: torch.nn.Module, promised: Contract) -> Sample:
    try:
        flat = flattening.flatten_inputs(model, _ordered(one, example))
        if flat.names != example.names or flat.constants != example.constants:
            raise RecipeError(
                f"its inputs are {', '.join((*flat.names, *flat.constants))}; inputs() has other names or constants"
            )
        specs = flattening.specs(flat.names, flat.tensors)
        contract.enforce(promised, specs)
    except (RecipeError, ContractError) as error:
        remedy = "return it in the form of inputs(), with sizes within their ranges (--size NAME=MIN..MAX widens one)"
        raise RecipeError(f"sample {index} does not fit: {error}", remedy) from error
    sizes = contract.sizes_of(promised, specs)
    ordered = {name: sizes[name] for name in promised.symbols if name in sizes}
    case = CaseRecord(f"{probing.describe(ordered)} sample {index}", sizes=ordered, sample=index)
    return Sample(case, flat.tensors)


def _ordered(one: Any, example: FlatInputs) -> Any:
    """Return a mapping with its keys in the example's order; return anything else unchanged."""
    _, usual = example.rebuild(example.tensors)
    if not hasattr(one, "keys") or set(one.keys()) != set(usual):
        return one
    return {key: one[key] for key in usual}


def evaluate(recipe: Recipe, outputs: Sequence[Tensors], names: Sequence[str]) -> float | None:
    """Return the mean of metric() over the samples, given their outputs, or None if the recipe has no metric.

    Raises RecipeError if metric() raises or returns anything but a finite number, or if the number of samples changed.
    """
    metric = getattr(recipe, "metric", None)
    if metric is None:
        return None
    found = given(recipe)
    if len(found) != len(outputs):
        raise RecipeError(
            f"samples() returns {len(found)} samples; the first time it returned {len(outputs)}",
            "make samples() return the same samples each time",
        )
    values = []
    for index, (one, tensors) in enumerate(zip(found, outputs, strict=True)):
        try:
            value = metric(dict(zip(names, tensors, strict=True)), one)
        except Exception as error:  # the user's own code
            remedy = "fix metric(): its arguments are the outputs by name, and the sample that samples() returned"
            raise RecipeError(f"metric() fails at sample {index}: {source_lines.summary(error)}", remedy) from error
        values.append(_number(value, index))
    return math.fsum(values) / len(values)


def _number(value: Any, index: int) -> float:
    try:
        number = float(value) if not isinstance(value, str) else math.nan
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        said = f"{type(value).__name__} {value}" if isinstance(value, (str, float)) else type(value).__name__
        raise RecipeError(f"metric() returns {said[:80]} at sample {index}", "return a finite number, higher is better")
    return number
