"""Names of an ONNX graph's dynamic axes: the contract's, in the place of those that torch's exporter invents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exporter.core.contract_records import TensorSpec

_MULTIPLE = re.compile(r"(\d+\*)?([A-Za-z_]\w*)")


def name(graph: Any, specs: Sequence[TensorSpec]) -> None:
    """Rename the axes of an onnx_ir graph; `specs` are of its inputs and then its outputs.

    An axis that follows from a symbol bears the contract's expression (`2*samples+1`), one that moves in no known way
    the tensor's name and its number. Inside the graph names are kept consistent with that. What the graph fixes stays.
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
                    found if isinstance(found, int) else _said(dim, names, found, f"{spec.name}.{axis}")
                    for axis, (found, dim) in enumerate(zip(value.shape, spec.shape, strict=True))
                ]
            )


def _said(dim: int | str | None, names: Mapping[str, str], found: Any, unknown: str) -> int | str:
    """What the contract says of a dimension that moves in the graph."""
    if isinstance(dim, str):
        return dim
    return str(_renamed(found, names)) if dim is not None and found.value else unknown


def _renamed(dim: Any, names: Mapping[str, str]) -> Any:
    """A dimension with the symbols in it, or all of it, renamed."""
    if isinstance(dim, int) or dim.value is None:
        return dim
    old = str(dim.value)
    plain: dict[str, str] = {}
    for key, new in names.items():
        if new.isidentifier() and (parts := _MULTIPLE.fullmatch(key)):
            plain[parts[2]] = f"_{new}" if parts[1] else new  # `16*_length`, where length is a multiple of 16
    return names.get(old) or re.sub(r"[A-Za-z_]\w*", lambda match: plain.get(match[0], match[0]), old)


def _values(graph: Any) -> Iterator[Any]:
    """Every value of the graph and of those inside it."""
    yield from graph.inputs
    for node in graph.all_nodes():
        yield from node.outputs
        for attribute in node.attributes.values():
            inner = getattr(attribute, "value", None)
            for one in inner if isinstance(inner, (list, tuple)) else (inner,):
                if hasattr(one, "all_nodes"):
                    yield from one.inputs
