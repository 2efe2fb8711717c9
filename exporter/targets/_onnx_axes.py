"""Rename an ONNX graph's dynamic axes from the names that torch's exporter invents to those of the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exporter.core.contract_records import TensorSpec

_MULTIPLE = re.compile(r"(\d+\*)?([A-Za-z_]\w*)")


def name(graph: Any, specs: Sequence[TensorSpec]) -> None:
    """Rename the dynamic axes of an onnx_ir graph; `specs` describe its inputs, then its outputs.

    An axis is named by its expression in the contract (`2*samples+1`), or by the tensor's name and the axis number if
    the contract has no expression for it. Values inside the graph are renamed consistently. Fixed axes stay fixed.
    """
    import onnx_ir

    ends = list(zip((*graph.inputs, *graph.outputs), specs, strict=False))
    names: dict[str, str] = {}
    for value, spec in ends:
        for found, dim in zip(value.shape or (), spec.shape, strict=False):
            if isinstance(dim, str) and isinstance(found, onnx_ir.SymbolicDim) and found.value is not None:
                names.setdefault(str(found.value), dim)
    given = {id(value) for value, _ in ends}
    for value in _values(graph):
        if value.shape is not None and id(value) not in given:
            value.shape = onnx_ir.Shape([_renamed(dim, names) for dim in value.shape])
    for value, spec in ends:
        if value.shape is not None:
            value.shape = onnx_ir.Shape(
                [
                    found if isinstance(found, int) else _axis_name(dim, names, found, f"{spec.name}.{axis}")
                    for axis, (found, dim) in enumerate(zip(value.shape, spec.shape, strict=True))
                ]
            )


def _axis_name(dim: int | str | None, names: Mapping[str, str], found: Any, unknown: str) -> int | str:
    """Return the contract's name for a dimension that is dynamic in the graph, or `unknown`."""
    if isinstance(dim, str):
        return dim
    return str(_renamed(found, names)) if dim is not None and found.value else unknown


def _renamed(dim: Any, names: Mapping[str, str]) -> Any:
    """Return a dimension with its whole name, or the symbols in it, replaced."""
    if isinstance(dim, int) or dim.value is None:
        return dim
    old = str(dim.value)
    plain: dict[str, str] = {}
    for key, new in names.items():
        if new.isidentifier() and (parts := _MULTIPLE.fullmatch(key)):
            plain[parts[2]] = f"_{new}" if parts[1] else new  # 16*_length if length is a multiple of 16
    return names.get(old) or re.sub(r"[A-Za-z_]\w*", lambda match: plain.get(match[0], match[0]), old)


def _values(graph: Any) -> Iterator[Any]:
    """Yield every value of the graph and of its subgraphs."""
    yield from graph.inputs
    for node in graph.all_nodes():
        yield from node.outputs
        for attribute in node.attributes.values():
            inner = getattr(attribute, "value", None)
            for one in inner if isinstance(inner, (list, tuple)) else (inner,):
                if hasattr(one, "all_nodes"):
                    yield from one.inputs
