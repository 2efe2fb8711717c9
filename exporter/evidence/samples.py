"""The user's own inputs and metric: what a recipe's samples() and metric() give. Runs only where recipes run."""

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
from exporter.core.expressions import Expression
from exporter.core.parity_records import CaseRecord
from exporter.model import flattening

if TYPE_CHECKING:
    from exporter.model.flattening import FlatInputs
    from exporter.model.recipes import Recipe
    from exporter.model.tensors import Tensors

MOST = 64  # samples that are taken


@dataclass(frozen=True)
class Sample:
    """One sample: flat CPU inputs, with the sizes that they have."""

    case: CaseRecord
    inputs: Tensors

    @property
    def sizes(self) -> dict[str, int]:
        """By symbol."""
        return self.case.sizes


def given(recipe: Recipe) -> list[Any]:
    """What samples() gives, the first MOST; nothing where a recipe has none. RecipeError where it fails."""
    make = getattr(recipe, "samples", None)
    if make is None:
        if getattr(recipe, "metric", None) is not None:
            raise RecipeError("the recipe has metric() and no samples() to judge by", "write samples(): real inputs")
        return []
    torch.manual_seed(0)
    try:
        found = list(itertools.islice(make(), MOST))
    except RecipeError:
        raise
    except Exception as error:
        raise RecipeError(
            f"samples() fails: {source_lines.summary(error)}", "give an iterable of inputs, in the form of inputs()"
        ) from error
    if not found:
        raise RecipeError("samples() gives nothing", "give at least one, or leave it out")
    return found


def read(recipe: Recipe, example: FlatInputs, model: torch.nn.Module, promised: Contract) -> list[Sample]:
    """The recipe's samples as the contract's tensors. RecipeError for one that does not fit it."""
    return [_read(index, one, example, model, promised) for index, one in enumerate(given(recipe))]


def _read(index: int, one: Any, example: FlatInputs, model: torch.nn.Module, promised: Contract) -> Sample:
    try:
        flat = flattening.flatten_inputs(model, _ordered(one, example))
        if flat.names != example.names or flat.constants != example.constants:
            raise RecipeError(
                f"it gives {', '.join((*flat.names, *flat.constants))}, inputs() other names or constants"
            )
        specs = flattening.specs(flat.names, flat.tensors)
        contract.enforce(promised, specs)
    except (RecipeError, ContractError) as error:
        remedy = "give it in the form of inputs(), of sizes that were promised (--size NAME=MIN..MAX promises more)"
        raise RecipeError(f"sample {index} does not fit: {error}", remedy) from error
    sizes: dict[str, int] = {}
    for spec, actual in zip(promised.inputs, specs, strict=True):
        for dim, size in zip(spec.shape, actual.sizes, strict=True):
            expression = Expression.parse(dim) if isinstance(dim, str) else None
            if expression is not None and (found := expression.solve(size)) is not None:
                sizes.setdefault(expression.name, found)
    ordered = {name: sizes[name] for name in promised.symbols if name in sizes}
    case = CaseRecord(f"{probing.describe(ordered)} sample {index}", sizes=ordered, sample=index)
    return Sample(case, flat.tensors)


def _ordered(one: Any, example: FlatInputs) -> Any:
    """A dict with its keys in the order of the example's."""
    _, usual = example.rebuild(example.tensors)
    if not hasattr(one, "keys") or set(one.keys()) != set(usual):
        return one
    return {key: one[key] for key in usual}


def evaluate(recipe: Recipe, outputs: Sequence[Tensors], names: Sequence[str]) -> float | None:
    """The mean of metric() over the samples, given their outputs; None where the recipe has no metric.

    RecipeError where it raises, or gives what is no finite number.
    """
    metric = getattr(recipe, "metric", None)
    if metric is None:
        return None
    found = given(recipe)
    if len(found) != len(outputs):
        raise RecipeError(
            f"samples() gives {len(found)} samples, a moment ago {len(outputs)}", "let it give the same each time"
        )
    values = []
    for index, (one, tensors) in enumerate(zip(found, outputs, strict=True)):
        try:
            value = metric(dict(zip(names, tensors, strict=True)), one)
        except Exception as error:  # the user's own code
            remedy = "mend metric(): it gets outputs by name, and what samples() gave"
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
