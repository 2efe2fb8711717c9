"""Packages with further models for some sizes, beside the one for all sizes, with the weights stored once.

Inductor writes the weights of each model to a blob of its own. Those of a further model that equal weights of the model
for all sizes are left out, and its index says so (docs/formats.md).
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.core import contract as contracts
from exporter.core.contract_records import Contract
from exporter.core.errors import ExportError
from exporter.core.probing import describe
from exporter.core.size_range import Sizes
from exporter.targets import _mapping, _weights

if TYPE_CHECKING:
    import torch

    from exporter.model.capture import Program
    from exporter.model.tensors import Run, Tensors

MODEL = _mapping.SHARED  # the name of the model for all sizes


def name(sizes: Sizes) -> str:
    """Return the name of the model for these sizes."""
    return "_".join(("entry", *(str(sizes[symbol]) for symbol in sorted(sizes))))


def graphs(
    graph: torch.export.ExportedProgram, program: Program, entries: Sequence[Sizes]
) -> dict[str, torch.export.ExportedProgram]:
    """Return the program at the sizes of each entry, by the name of its model.

    Raise ExportError for sizes that the program does not take, or if another size is not free in an entry.
    """
    from exporter.model import capture, flattening

    if not entries:
        return {}
    assert program.make_at is not None
    for sizes in entries:
        for symbol, size in sizes.items():
            if not program.contract.symbols[symbol].allows(size):
                bounds = program.contract.symbols[symbol]
                raise ExportError(
                    f"the exported program takes only {symbol} {bounds}, and --entries asks for {size}",
                    "leave this size out of --entries",
                )
    found = {}
    for sizes in entries:
        for symbol in sizes:
            contracts.place_of(program.contract, symbol)
        settled = contracts.settle(program.function, sizes)
        module = flattening.FlatGraph(graph.module(check_guards=False))
        made = capture.capture(module, program.make_at(sizes), settled)
        if made.fixed or made.bounds or made.rules:
            left = {symbol for one in made.fixed for symbol in one.symbols} | made.bounds.keys() | made.rules.keys()
            raise ExportError(
                f"the model for {describe(sizes)} would not take every {' and '.join(sorted(left))}",
                f"give --entries for {', '.join(sorted({*sizes, *left}))}, or leave it out",
            )
        found[name(sizes)] = made.program
    return found


def share(models: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Leave weights out of the other models' blobs that the model for all sizes has; return the files of all.

    `models` are the files that inductor wrote for each. Nothing changes if the libraries contain the weights.
    """
    known: dict[tuple[str, str], dict[str, Any]] = {}
    found: dict[str, list[Any]] = {}
    for model, files in models.items():
        found[model] = list(files)
        index = next((Path(file) for file in files if str(file).endswith(_mapping.INDEX)), None)
        if index is None:
            continue
        constants = json.loads(index.read_text())["constants"]
        blob = Path(str(index).removesuffix(_mapping.INDEX) + _mapping.BLOB)
        with blob.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if model == MODEL:
                known = {_content(one, data): one for one in constants}
                continue
            pieces, at = [], 0
            for one in constants:
                if same := known.get(_content(one, data)):
                    one |= {"offset": same["offset"], "bytes": same["bytes"], _mapping.PLACE: MODEL}
                    continue
                pieces.append(data[one["offset"] : one["offset"] + one["bytes"]])
                one["offset"] = at
                at += _weights.padded(one["bytes"])
        index.write_text(json.dumps({"constants": constants}))
        blob.write_bytes(b"".join(piece.ljust(_weights.padded(len(piece)), b"\0") for piece in pieces))
        if not at:
            found[model].remove(str(blob))  # torch cannot map an empty file
    return found


def _content(constant: Mapping[str, Any], data: mmap.mmap) -> tuple[str, str]:
    """Return what makes two constants interchangeable: their bytes, and how these are read."""
    begin = constant["offset"]
    how = {key: value for key, value in constant.items() if key not in ("name", "offset")}
    return hashlib.sha256(data[begin : begin + constant["bytes"]]).hexdigest(), json.dumps(how, sort_keys=True)


def choose(promise: Contract, models: Mapping[str, Run]) -> Run:
    """Return a function that runs the model for the sizes of its inputs, or else the one for all sizes."""
    symbols = sorted(promise.entries[0])
    places = [contracts.place_of(promise, symbol) for symbol in symbols]
    special = {tuple(sizes[symbol] for symbol in symbols): models[name(sizes)] for sizes in promise.entries}
    general = models[MODEL]

    def run(inputs: Tensors) -> Tensors:
        sizes = tuple(inputs[which].shape[axis] for which, axis in places)
        return special.get(sizes, general)(inputs)

    return run


def notes(entries: Iterable[Sizes]) -> tuple[str, ...]:
    """Return the note of a row with entries."""
    told = ", ".join(map(describe, entries))
    return (f"compiled separately for {told}",) if told else ()
