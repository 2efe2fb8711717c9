"""Example inputs of a saved program that has a contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.core.contract import enforce, shape_at, sizes_of
from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.dimensions import NamedDim
from exporter.core.errors import ContractError, RecipeError
from exporter.core.expressions import Expression
from exporter.core.probing import nearest
from exporter.model import examples, tensor_files
from exporter.model.examples import Leaf
from exporter.model.flattening import specs
from exporter.model.sources import _saved_files

Bounds = dict[str, tuple[int, ...]]  # (min, max), or (min, max, step)
GOLDEN, PICKLED_GOLDEN = "golden.safetensors", "golden.pt"


def renamed(contract: Contract, dims: Sequence[NamedDim]) -> Contract:
    """Return the contract with the user's names and ranges of dimensions. Raises RecipeError for a fixed dimension."""
    names: dict[str, str] = {}
    symbols = dict(contract.symbols)
    for dim in dims:
        spec = next((spec for spec in contract.inputs if spec.name == dim.input), None)
        if spec is None or dim.axis >= len(spec.shape):
            raise examples.no_such(dim, {spec.name: len(spec.shape) for spec in contract.inputs})
        symbol = spec.shape[dim.axis]
        if not isinstance(symbol, str) or symbol not in symbols:
            raise examples.not_free(dim, symbol)
        if names.setdefault(symbol, dim.name) != dim.name:
            raise examples.one_size(symbol, dim.name, names[symbol])
        if dim.bounds:
            symbols[symbol] = examples.within(dim, symbols[symbol])
    examples.require_distinct([names.get(name, name) for name in symbols])

    def rename(spec: TensorSpec) -> TensorSpec:
        shape = []
        for size in spec.shape:
            expression = Expression.parse(size) if isinstance(size, str) else None
            if expression is not None:
                size = str(expression.renamed(names))
            shape.append(size)
        return dataclasses.replace(spec, shape=tuple(shape))

    return dataclasses.replace(
        contract,
        inputs=tuple(map(rename, contract.inputs)),
        outputs=tuple(map(rename, contract.outputs)),
        symbols={names.get(name, name): bounds for name, bounds in symbols.items()},
    )


def from_contract(contract: Contract, example: Sequence[torch.Tensor]) -> tuple[list[Leaf], dict[str, int], Bounds]:
    """Return leaves, the example's sizes and their bounds according to a contract."""
    leaves = []
    for spec, tensor in zip(contract.inputs, example, strict=True):
        expressions = {axis: Expression.parse(dim) for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
        leaves.append(Leaf(tensor, {axis: expression.at for axis, expression in expressions.items()}))
    sizes = sizes_of(contract, specs([spec.name for spec in contract.inputs], example))
    known = {name: bounds for name, bounds in contract.symbols.items() if name in sizes}
    return (
        leaves,
        {name: nearest(sizes[name], bounds) for name, bounds in known.items()},
        {name: bounds.written for name, bounds in known.items()},
    )


def example_for(contract: Contract, path: Path, inputs_file: str) -> Sequence[torch.Tensor]:
    """Return tensors that fit the contract: from --inputs, the golden beside the file, or random if all are floating.

    Raises RecipeError if those of --inputs do not fit, or if valid values of integer inputs are unknown.
    """
    if inputs_file:
        given = _in_order(_saved_files.load_tensors(Path(inputs_file)), contract)
        try:
            enforce(contract, specs([spec.name for spec in contract.inputs], given))
        except ContractError as error:
            raise RecipeError(
                f"--inputs {inputs_file} does not fit the program: {error}", "save other inputs"
            ) from error
        return given
    found = of_golden(contract, path)
    if found is not None:
        return found
    integral = [spec.name for spec in contract.inputs if not spec.dtype.startswith(("float", "bfloat"))]
    if integral:
        raise RecipeError(
            f"the valid values of {', '.join(integral)} are unknown",
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
    """Return the example of the golden (docs/formats.md) beside an artifact, or None if none fits the contract."""
    try:
        tensors = _first_inputs(path)
        enforce(contract, specs([spec.name for spec in contract.inputs], tensors))
    except Exception:  # no golden, or the golden of another program
        return None
    return tensors


def _first_inputs(path: Path) -> list[torch.Tensor]:
    if (golden := path.with_name(GOLDEN)).exists():
        tensors, about = tensor_files.read(golden)
        return [tensors[f"cases.0.inputs.{index}"] for index in range(about["cases"][0]["inputs"])]
    held = torch.load(path.with_name(PICKLED_GOLDEN), weights_only=True, map_location="cpu")
    return list(held["cases"][0]["inputs"])


def _made_up(spec: TensorSpec, contract: Contract) -> torch.Tensor:
    sizes = {name: nearest(2, bounds) for name, bounds in contract.symbols.items()}
    known = dataclasses.replace(spec, shape=tuple(1 if dim is None else dim for dim in spec.shape))
    return torch.randn(shape_at(known, sizes)).to(getattr(torch, spec.dtype))
