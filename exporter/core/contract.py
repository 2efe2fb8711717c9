"""Contracts: found by probing `inputs()` at several sizes, and enforced on every call.

Nothing here needs torch: a tensor is known by its `TensorSpec` of plain sizes.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from exporter.core.contract_records import (
    DEVICES,
    ITEM_BYTES,
    PRECISIONS,
    Contract,
    Dim,
    StateTensor,
    TensorSpec,
    Values,
)
from exporter.core.errors import ArtifactError, ContractError, UsageError
from exporter.core.expressions import Expression, fit
from exporter.core.json_codec import from_json
from exporter.core.records import Range

Sizes = dict[str, int]
Probe = Callable[[Sizes], tuple[TensorSpec, ...]]
RECORD = "extra/contract.json"
LARGEST = 1 << 28  # bytes of a contract that are read, in Python as in C++: it may hold tensors of state


def infer_shapes(
    observed: Sequence[tuple[Sizes, tuple[TensorSpec, ...]]], symbols: Mapping[str, Range]
) -> tuple[TensorSpec, ...]:
    """Which dimension follows which symbol, from the same tensors seen at several sizes.

    A dimension that never moved is fixed; one that moved with one symbol is that symbol or an expression of it, where
    one fits; any other moved in a way that has no name here, and is None.
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
                _infer_dim([(sizes, size) for sizes, specs in observed for size in specs[i].sizes[d : d + 1]], symbols)
                for d in range(len(spec.shape))
            ),
        )
        for i, spec in enumerate(first)
    )


def _infer_dim(seen: Sequence[tuple[Sizes, int]], symbols: Mapping[str, Range]) -> Dim:
    """From sizes of which one at a time was moved; the first are the base."""
    base, size = seen[0]
    if len({other for _, other in seen}) == 1:
        return size
    moving = {name for name in symbols for sizes, other in seen if other != size and sizes[name] != base[name]}
    if len(moving) != 1:
        return None
    name = moving.pop()
    pairs = [(sizes[name], other) for sizes, other in seen]
    if all(size == other for size, other in pairs):
        return name
    found = fit(name, pairs)
    return str(found) if found else None


def probe_shapes(
    probe: Probe, base: Sizes, symbols: Mapping[str, Range], to_the_ends: bool = False
) -> tuple[TensorSpec, ...]:
    """Specs of the tensors that `probe` gives, found by moving one size at a time, on wish to its range's ends."""
    observed = [(base, probe(base))]
    for name, bounds in symbols.items():
        sizes = probes(base[name], bounds) + ([bounds.sizes[0], bounds.sizes[-1]] if to_the_ends else [])
        observed += [(moved, probe(moved)) for size in dict.fromkeys(sizes) for moved in ({**base, name: size},)]
    return infer_shapes(observed, symbols)


def probes(base: int, bounds: Range) -> list[int]:
    """Up to four other sizes, neighbours and distant ones, which tell a formula from its likes."""
    if bounds.choices:
        return [size for size in bounds.choices if size != base]
    step = bounds.multiple_of
    at = base // step
    wanted = (at + 1, at + 2, 2 * at + 1, at + at // 2 + 3, at - 1, at - 2, at // 2)
    sizes = dict.fromkeys(step * multiple for multiple in wanted)
    return [size for size in sizes if bounds.allows(size) and size != base][:4]


def capture_sizes(base: Sizes, symbols: Mapping[str, Range]) -> Sizes:
    """Sizes at which to capture: none is 1 (torch.export would fix it), no two are alike (it might unite them).

    The first multiple of a step is none of them either, where there is another: what is divided by the step is 1 there.
    """
    sizes = dict(base)
    taken: set[int] = set()
    for name, bounds in symbols.items():
        if bounds.choices:
            continue
        allowed, step = bounds.sizes, bounds.multiple_of
        wanted = max(sizes[name], 2 * step)
        while wanted in taken and wanted < allowed[-1]:
            wanted += step
        sizes[name] = min(wanted, allowed[-1])
        taken.add(sizes[name])
    return sizes


def sweep_points(base: Sizes, symbols: Mapping[str, Range], sweep: Mapping[str, Sequence[int]]) -> dict[str, Sizes]:
    """Every combination of the sizes to be timed at, by the name of its golden case; the example first.

    UsageError for a size that the artifacts do not promise.
    """
    for name, sizes in sweep.items():
        if name not in symbols:
            raise UsageError(f"{name} is not dynamic, so no artifact runs at {len(sizes)} sizes of it", "see --dynamic")
        for size in sizes:
            if not symbols[name].allows(size):
                more = f"--size {name}={min(sizes)}..{max(sizes)}"
                if symbols[name].multiple_of > 1:
                    more = f"--size {name}={symbols[name].min}..{max(*sizes, symbols[name].max)}"
                if symbols[name].choices:
                    more = f"--specialize {name}={','.join(map(str, sorted({*sizes, *symbols[name].choices})))}"
                remedy = f"{more} promises more"
                raise UsageError(f"{name} is {symbols[name]}, which leaves out {size}", remedy)
    points = [dict(zip(sweep, sizes, strict=True)) for sizes in itertools.product(*sweep.values())] if sweep else []
    own = {name: base[name] for name in sweep}
    return {describe({**base, **point}): point for point in (own, *points)} if sweep else {}


def probe_plan(base: Sizes, symbols: Mapping[str, Range], points: Iterable[Sizes] = ()) -> list[tuple[Sizes, int]]:
    """(sizes, seed) of the golden's cases; the example first, twice.

    Every symbol is tried alone at its minimum, 2, an odd size and its maximum, and all together at odd sizes, counted
    in steps where it has one; then come the points of a sweep.
    """
    plan = [(base, 0), (base, 1)]
    for name, bounds in symbols.items():
        step, last = bounds.multiple_of, bounds.sizes[-1]
        for value in bounds.choices or (bounds.sizes[0], 2 * step, 3 * step, _odd(base[name], bounds), last):
            if bounds.allows(value):
                plan.append(({**base, name: value}, 0))
    together = {name: nearest((2 * i + 3) * b.multiple_of, b) for i, (name, b) in enumerate(symbols.items())}
    plan.append(({**base, **together}, 0))
    plan += [({**base, **point}, 0) for point in points]
    unique = {(describe(sizes), seed): (sizes, seed) for sizes, seed in plan}
    return list(unique.values())


def nearest(size: int, bounds: Range) -> int:
    """The size nearest to this one that a symbol may have."""
    if bounds.choices:
        return min(bounds.choices, key=lambda choice: abs(choice - size))
    step, allowed = bounds.multiple_of, bounds.sizes
    below = size // step * step
    return max(allowed[0], min(below if 2 * (size - below) <= step else below + step, allowed[-1]))


@dataclasses.dataclass(frozen=True)
class Narrowing:
    """What is left of a symbol's range where the artifact comes from an exported program, and the line that says so.

    It holds for the `graph`, and so for all that is made from it; or, where that is right outside too, for the program
    that checks its own `guards`; or for the code of a compiler, which builds on them: `code`.
    """

    symbol: str
    bounds: Range
    place: str = ""
    of: Literal["graph", "guards", "code"] = "graph"

    def told(self, promised: Range) -> str:
        """`height: multiples of 2 (model.py:12)`: what differs from what the model promises."""
        return f"{self.symbol}: {left_of(promised, self.bounds)}{f' ({self.place})' if self.place else ''}"


def left_of(promised: Range, bounds: Range) -> str:
    """What is left of a range, in words: `multiples of 2` where nothing but its step is another."""
    step = bounds.multiple_of
    alone = step > promised.multiple_of and promised.within(promised.min, promised.max, step) == bounds
    return f"multiples of {step}" if alone else str(bounds)


def narrow(contract: Contract, narrowings: Iterable[Narrowing]) -> Contract:
    """The contract where its symbols have no other sizes than these leave."""
    symbols = dict(contract.symbols)
    for one in narrowings:
        if one.symbol in symbols:  # an entry has not all of them
            bounds = one.bounds
            symbols[one.symbol] = symbols[one.symbol].within(bounds.min, bounds.max, bounds.multiple_of)
    return dataclasses.replace(contract, symbols=symbols)


def specialized(contract: Contract) -> str:
    """The symbol that has entries of its own in the artifact; "" where none has."""
    return next((name for name, bounds in contract.symbols.items() if bounds.choices), "")


def entry(contract: Contract, size: int) -> Contract:
    """The contract of one entry: its symbol is a size like any other."""
    name = specialized(contract)

    def settle(spec: TensorSpec) -> TensorSpec:
        expressions = [Expression.parse(dim) if isinstance(dim, str) else None for dim in spec.shape]
        return dataclasses.replace(
            spec,
            shape=tuple(
                e.at(size) if e is not None and e.name == name else dim
                for e, dim in zip(expressions, spec.shape, strict=True)
            ),
        )

    state = contract.state
    if state is not None:
        shapes = (settle(tensor.spec).shape for tensor in state.tensors)
        tensors = (dataclasses.replace(t, shape=shape) for t, shape in zip(state.tensors, shapes, strict=True))
        state = dataclasses.replace(state, tensors=tuple(tensors))
    return dataclasses.replace(
        contract,
        inputs=tuple(map(settle, contract.inputs)),
        outputs=tuple(map(settle, contract.outputs)),
        state=state,
        symbols={n: bounds for n, bounds in contract.symbols.items() if n != name},
    )


def keeps_state(contract: Contract) -> bool:
    """Whether the artifact carries state from call to call."""
    return contract.state is not None and contract.state.kept == "inside"


def as_function(contract: Contract) -> Contract:
    """The contract of the same model as a function, with its state among its inputs and outputs."""
    if contract.state is None or contract.state.kept == "outside":
        return contract
    specs = tuple(tensor.spec for tensor in contract.state.tensors)
    return dataclasses.replace(
        contract,
        inputs=contract.inputs + specs,
        outputs=contract.outputs + specs,
        state=dataclasses.replace(contract.state, kept="outside"),
    )


def output_names(contract: Contract) -> list[str]:
    """What outputs are called in a graph where no output bears an input's name: state that follows `state.h`, for one,
    is `state.h.next` there."""
    taken = {spec.name for spec in contract.inputs}
    return [f"{spec.name}.next" if spec.name in taken else spec.name for spec in contract.outputs]


def selector(contract: Contract) -> tuple[int, int]:
    """Input and axis whose size tells the entry. UsageError when no dimension is the specialised symbol itself."""
    name = specialized(contract)
    for index, spec in enumerate(contract.inputs):
        if name in spec.shape:
            return index, spec.shape.index(name)
    raise UsageError(f"no input's dimension is {name} itself", "specialise a size that a dimension has")


def _odd(size: int, bounds: Range) -> int:
    """An odd size above the example's, or an odd multiple of the step, where the range has one."""
    multiple = size // bounds.multiple_of
    return min((multiple + 1 + multiple % 2) * bounds.multiple_of, bounds.sizes[-1])


def describe(sizes: Sizes) -> str:
    """`batch=2 sequence=14`."""
    return " ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"


def choose_sizes(
    base: Sizes,
    symbols: Mapping[str, Range],
    sizes: Sizes,
    ranges: Mapping[str, Range],
    dynamic: str = "all",
) -> tuple[Sizes, dict[str, Range]]:
    """The example's sizes and the symbols, from the recipe's own and from what the user asked for.

    `sizes` and `ranges` replace the recipe's; `dynamic` is all, none, or names of the sizes that stay dynamic. An
    example that lies outside a new range is moved into it. UsageError for an unknown name and a size out of its range.
    """
    wanted = [] if dynamic in ("all", "none") else [name.strip() for name in dynamic.split(",")]
    for name in (*sizes, *ranges, *wanted):
        if name not in base:
            raise UsageError(f"inputs() takes no {name}", f"it takes {', '.join(base) or 'no sizes'}")
    if len([name for name, bounds in ranges.items() if bounds.choices]) > 1:
        raise UsageError("only one size can be specialised", "give --specialize once")
    symbols = {**symbols, **ranges}
    for name in wanted:
        if name not in symbols:
            raise UsageError(f"{name} has no range to be dynamic in", f"give --size {name}=MIN..MAX")
    base = {n: nearest(s, ranges[n]) if n in ranges else s for n, s in base.items()} | sizes
    check_sizes(base, symbols)
    return base, {n: bounds for n, bounds in symbols.items() if dynamic == "all" or n in wanted or bounds.choices}


def check_sizes(sizes: Sizes, symbols: Mapping[str, Range]) -> None:
    """UsageError for a size outside its range."""
    for name, size in sizes.items():
        bounds = symbols.get(name, Range(1, 2**31))
        if not bounds.allows(size):
            raise UsageError(
                f"{name} is {size}, which is outside its range, {bounds}",
                f"choose another --size {name}=N, or a range that holds it: --size {name}=MIN..MAX or MIN..MAX..STEP",
            )


def sizes_of(contract: Contract, actual: Sequence[TensorSpec]) -> Sizes:
    """The symbols' sizes that inputs tell, given in the contract's order; those that none tells are left out."""
    found: Sizes = {}
    for spec, tensor in zip(contract.inputs, actual, strict=False):
        for want, got in zip(spec.shape, tensor.sizes, strict=True):
            expression = Expression.parse(want) if isinstance(want, str) else None
            size = expression.solve(got) if expression is not None else None
            if expression is not None and size is not None:
                found.setdefault(expression.name, size)
    return found


def shape_at(spec: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    """The shape at these sizes. ContractError for a dimension that does not follow from them."""
    shape = []
    for axis, dim in enumerate(spec.shape):
        expression = Expression.parse(dim) if isinstance(dim, str) else None
        if expression is not None and expression.name in sizes:
            shape.append(expression.at(sizes[expression.name]))
        elif isinstance(dim, int):
            shape.append(dim)
        else:
            raise ContractError(f"{spec.name} dim {axis} does not follow from the sizes of the inputs")
    return tuple(shape)


def enforce(contract: Contract, actual: Sequence[TensorSpec]) -> None:
    """ContractError when tensors, given in the contract's order, do not fit it."""
    if len(actual) != len(contract.inputs):
        names = ", ".join(spec.name for spec in contract.inputs)
        raise ContractError(f"{len(actual)} inputs given, the contract has {len(contract.inputs)}: {names}")
    for spec, tensor in zip(contract.inputs, actual, strict=True):
        if tensor.dtype != spec.dtype:
            raise ContractError(f"{spec.name}: dtype {tensor.dtype}, the contract wants {spec.dtype}")
        if len(tensor.shape) != len(spec.shape):
            raise ContractError(f"{spec.name}: {len(tensor.shape)} dimensions, the contract wants {len(spec.shape)}")
    _enforce_sizes(
        contract,
        [
            (f"{spec.name} dim {axis}", want, got)
            for spec, tensor in zip(contract.inputs, actual, strict=True)
            for axis, (want, got) in enumerate(zip(spec.shape, tensor.shape, strict=True))
            if isinstance(got, int)
        ],
    )


def _enforce_sizes(contract: Contract, dims: Sequence[tuple[str, Dim, int]]) -> None:
    """Fixed sizes; then symbols, known by name before they are known by what follows from them; then all the rest."""
    for where, want, got in dims:
        if isinstance(want, int) and got != want:
            raise ContractError(f"{where} is {got}, the contract wants {want}")
    symbolic = [(where, Expression.parse(want), got) for where, want, got in dims if isinstance(want, str)]
    symbolic.sort(key=lambda dim: (dim[1].divisor, dim[1] != Expression(dim[1].name)))
    known: dict[str, tuple[int, str]] = {}
    for where, expression, got in symbolic:
        name, bounds = expression.name, contract.symbols[expression.name]
        if name not in known and (size := expression.solve(got)) is not None:
            if not bounds.allows(size):
                raise ContractError(f"{where}: {name} is {size}, the contract allows {bounds}")
            known[name] = (size, where)
        elif name in known:
            size, source = known[name]
            if expression.at(size) != got:
                what = str(got) if str(expression) == name else f"{got}, not {expression} = {expression.at(size)}"
                raise ContractError(f"{where} is {what}, but {name} is {size} (from {source})")
        elif not bounds.allows_any(expression.sizes(got)):
            raise ContractError(f"{where} is {got}: no {name} of {bounds} gives {expression} = {got}")


def append_to_zip(path: Path, text: str) -> None:
    """Put the contract into a zip archive that torch wrote, as one of its extra files."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        top = archive.namelist()[0].split("/")[0]
        archive.writestr(zipfile.ZipInfo(f"{top}/{RECORD}"), text)  # of 1980, so that the bytes are the same each time


def read(text: str | bytes) -> Contract:
    """A contract as an artifact carries it. ArtifactError for what is none: as cpp/src/contract_json.cpp judges."""
    try:
        found = from_json(Contract, text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise ArtifactError(f"not a valid Contract: {error}") from error
    if missing := {"target", "device"} - json.loads(text).keys():
        raise ArtifactError(f"not a valid Contract: no {min(missing)} is given")
    if problem := _problem(found) or _state_problem(found):
        raise ArtifactError(f"not a valid Contract: {problem}")
    return found


def _problem(contract: Contract) -> str:
    """What a contract has that no artifact can; "" where that is nothing."""
    if contract.device not in DEVICES:
        return f"device {contract.device!r} is not {' or '.join(DEVICES)}"
    if contract.precision not in PRECISIONS:
        return f"there is no precision {contract.precision!r}"
    state = tuple(tensor.spec for tensor in contract.state.tensors) if contract.state else ()
    for spec in (*contract.inputs, *contract.outputs, *state):
        if spec.dtype not in ITEM_BYTES:
            return f"{spec.name} has an unknown dtype, {spec.dtype}"
        if not all(0 <= dim < 1 << 63 for dim in spec.shape if isinstance(dim, int)):
            return f"{spec.name} has a dimension that is no size"
    return ""


def _state_problem(contract: Contract) -> str:
    """What is wrong with a contract's state; "" where nothing is, or there is none."""
    state = contract.state
    if state is None:
        return ""
    if len({tensor.name for tensor in state.tensors}) != len(state.tensors) or not state.tensors:
        return "its state has no tensors, or two of one name"
    for tensor in state.tensors:
        if problem := _initial_problem(tensor):
            return f"state {tensor.name}: {problem}"
    specs = tuple(tensor.spec for tensor in state.tensors)
    if state.kept == "outside" and contract.inputs[-len(specs) :] != specs:
        return "its last inputs are not its state"
    last = contract.outputs[-len(specs) :]
    alike = [(spec.name, spec.dtype, len(spec.shape)) for spec in specs]
    if state.kept == "outside" and [(spec.name, spec.dtype, len(spec.shape)) for spec in last] != alike:
        return "its last outputs are not its state"
    return ""


def _initial_problem(tensor: StateTensor) -> str:
    """What is wrong with the value before the first call: it has to fill its shape, and that to broadcast."""
    initial = tensor.initial
    if not isinstance(initial, Values):
        if tensor.dtype == "bool" and initial not in (0, 1):
            return "its initial value is neither 0 nor 1"
        whole = isinstance(initial, int) or initial.is_integer()
        return "" if whole or not tensor.dtype.startswith(("int", "uint")) else "its initial value is not whole"
    try:
        data = base64.b64decode(initial.data, validate=True)
    except ValueError:
        return "its initial data is not base64"
    if len(data) != math.prod(initial.shape) * ITEM_BYTES[tensor.dtype] or min(initial.shape, default=0) < 0:
        return "its initial data does not fill its shape"
    if tensor.dtype == "bool" and set(data) - {0, 1}:
        return "its initial data is not of 0 and 1"
    missing = len(tensor.shape) - len(initial.shape)
    pairs = zip(tensor.shape[max(missing, 0) :], initial.shape, strict=False)
    fits = missing >= 0 and all(have == 1 or want is None or want == have for want, have in pairs)
    return "" if fits and None not in tensor.shape[: max(missing, 0)] else "its initial shape does not fit its shape"


def read_zip(path: Path) -> Contract:
    """The contract inside a `.pt` or `.pt2`; ArtifactError when there is none or the file is broken."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.endswith("/" + RECORD)), None)
            if name is None:
                raise ArtifactError(f"{path} carries no contract", "export it with exporter")
            with archive.open(name) as record:
                text = record.read(LARGEST + 1)
    except ArtifactError:
        raise
    except Exception as error:  # zipfile's own, zlib's, RuntimeError for a password, NotImplementedError for a method
        raise ArtifactError(f"{path} cannot be read: {error or type(error).__name__}", "export it again") from error
    return parse(text, path)


def require_whole(path: Path) -> None:
    """ArtifactError where a member of an archive is not what its own CRC-32 says; nothing for what is no archive.

    For a file of which no record has the hash: torch's readers do not look at it.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
                if broken is not None:
                    raise ArtifactError(f"{path} was altered: the checksum of {broken} is another", "export it again")
    except ArtifactError:
        raise
    except Exception as error:  # as of `read_zip`
        raise ArtifactError(f"{path} cannot be read: {error or type(error).__name__}", "export it again") from error


def parse(text: str | bytes, path: Path) -> Contract:
    """The contract that an artifact carries. ArtifactError for what is none, or is too large to be one."""
    if len(text) > LARGEST:
        raise ArtifactError(f"{path}: its contract has more than {LARGEST:,} bytes", "export it again")
    try:
        return read(text)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: its contract is {error}", error.remedy or "export it again") from error
