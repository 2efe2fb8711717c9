"""Contracts: found by probing `inputs()` at several sizes, and enforced on every call.

Nothing here needs torch: a tensor is known by its `TensorSpec` of plain sizes.
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from exporter.errors import ArtifactError, ContractError, UsageError
from exporter.records import Contract, Dim, Range, TensorSpec, from_json

Sizes = dict[str, int]
Probe = Callable[[Sizes], tuple[TensorSpec, ...]]
RECORD = "extra/contract.json"


def infer_shapes(
    observed: Sequence[tuple[Sizes, tuple[TensorSpec, ...]]], symbols: Mapping[str, Range]
) -> tuple[TensorSpec, ...]:
    """Which dimension follows which symbol, from the same tensors seen at several sizes.

    A dimension that never moved is fixed; one that always equals a symbol's size is that symbol; any other moved in a
    way that has no name here, and is None.
    """
    first = observed[0][1]
    for sizes, specs in observed:
        if [s.name for s in specs] != [s.name for s in first] or [len(s.shape) for s in specs] != [
            len(s.shape) for s in first
        ]:
            raise ContractError(
                f"the tensors at {describe(sizes)} are not those at {describe(observed[0][0])}: names or ranks differ"
            )
    return tuple(
        dataclasses.replace(
            spec,
            shape=tuple(
                _infer_dim([(sizes, specs[i].shape[d]) for sizes, specs in observed], symbols)
                for d in range(len(spec.shape))
            ),
        )
        for i, spec in enumerate(first)
    )


def _infer_dim(seen: Sequence[tuple[Sizes, Dim]], symbols: Mapping[str, Range]) -> Dim:
    if len({size for _, size in seen}) == 1:
        return seen[0][1]
    return next((name for name in symbols if all(sizes[name] == size for sizes, size in seen)), None)


def probe_inputs(probe: Probe, base: Sizes, symbols: Mapping[str, Range]) -> tuple[TensorSpec, ...]:
    """Specs of the inputs, found by changing one size at a time."""
    observed = [(base, probe(base))]
    for name, bounds in symbols.items():
        moved = {**base, name: base[name] + 1 if base[name] < bounds.max else base[name] - 1}
        if moved[name] >= bounds.min:
            observed.append((moved, probe(moved)))
    return infer_shapes(observed, symbols)


def capture_sizes(base: Sizes, symbols: Mapping[str, Range]) -> Sizes:
    """Sizes at which to capture: none is 1 (torch.export would fix it), no two are alike (it might unite them)."""
    sizes = dict(base)
    taken: set[int] = set()
    for name, bounds in symbols.items():
        wanted = max(sizes[name], 2)
        while wanted in taken and wanted < bounds.max:
            wanted += 1
        sizes[name] = min(wanted, bounds.max)
        taken.add(sizes[name])
    return sizes


def probe_plan(base: Sizes, symbols: Mapping[str, Range]) -> list[tuple[Sizes, int]]:
    """(sizes, seed) of the golden's cases; the example first, twice.

    Every symbol is tried alone at its minimum, 2, an odd size and its maximum, and all together at odd sizes.
    """
    plan = [(base, 0), (base, 1)]
    for name, bounds in symbols.items():
        for value in (bounds.min, 2, 3, _odd(base[name], bounds), bounds.max):
            if bounds.min <= value <= bounds.max:
                plan.append(({**base, name: value}, 0))
    together = {name: min(max(2 * i + 3, bounds.min), bounds.max) for i, (name, bounds) in enumerate(symbols.items())}
    plan.append(({**base, **together}, 0))
    unique = {(describe(sizes), seed): (sizes, seed) for sizes, seed in plan}
    return list(unique.values())


def _odd(size: int, bounds: Range) -> int:
    """An odd size above the example's, where the range has one."""
    return min(size + 1 + size % 2, bounds.max)


def describe(sizes: Sizes) -> str:
    """`batch=2 sequence=14`."""
    return " ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"


def check_sizes(sizes: Sizes, symbols: Mapping[str, Range]) -> None:
    """UsageError for a size outside its range."""
    for name, size in sizes.items():
        bounds = symbols.get(name, Range(1, 2**31))
        if not bounds.min <= size <= bounds.max:
            raise UsageError(
                f"{name} is {size}, but the recipe allows {bounds.min} to {bounds.max}",
                f"choose another --size {name}=N, or widen the recipe's sizes",
            )


def enforce(contract: Contract, actual: Sequence[TensorSpec]) -> None:
    """ContractError when tensors, given in the contract's order, do not fit it."""
    if len(actual) != len(contract.inputs):
        names = ", ".join(spec.name for spec in contract.inputs)
        raise ContractError(f"{len(actual)} inputs given, the contract has {len(contract.inputs)}: {names}")
    sizes: dict[str, tuple[int, str]] = {}
    for spec, tensor in zip(contract.inputs, actual, strict=True):
        if tensor.dtype != spec.dtype:
            raise ContractError(f"{spec.name}: dtype {tensor.dtype}, the contract wants {spec.dtype}")
        if len(tensor.shape) != len(spec.shape):
            raise ContractError(f"{spec.name}: {len(tensor.shape)} dimensions, the contract wants {len(spec.shape)}")
        for axis, (want, got) in enumerate(zip(spec.shape, tensor.shape, strict=True)):
            if want is not None and isinstance(got, int):
                _enforce_dim(contract, f"{spec.name} dim {axis}", want, got, sizes)


def _enforce_dim(contract: Contract, where: str, want: int | str, got: int, sizes: dict[str, tuple[int, str]]) -> None:
    if isinstance(want, int):
        if got != want:
            raise ContractError(f"{where} is {got}, the contract wants {want}")
        return
    bounds = contract.symbols[want]
    if not bounds.min <= got <= bounds.max:
        raise ContractError(f"{where}: {want} is {got}, the contract allows {bounds.min} to {bounds.max}")
    known, source = sizes.setdefault(want, (got, where))
    if got != known:
        raise ContractError(f"{where} is {got}, but {want} is {known} (from {source})")


def append_to_zip(path: Path, text: str) -> None:
    """Put the contract into a zip archive that torch wrote, as one of its extra files."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        top = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{top}/{RECORD}", text)


def read_zip(path: Path) -> Contract:
    """The contract inside a `.pt` or `.pt2`; ArtifactError when there is none or the file is broken."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.endswith("/" + RECORD)), None)
            if name is None:
                raise ArtifactError(f"{path} carries no contract", "export it with exporter")
            return from_json(Contract, archive.read(name))
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}", "export it again") from error
