"""Write contracts into artifacts, and read and validate them from files that may not be trustworthy."""

from __future__ import annotations

import base64
import json
import math
import zipfile
from pathlib import Path

from exporter.core import precisions
from exporter.core.contract_records import (
    DEVICES,
    ITEM_BYTES,
    Contract,
    StateTensor,
    Values,
)
from exporter.core.errors import ArtifactError
from exporter.core.json_codec import from_json, to_json

RECORD = "extra/contract.json"
LARGEST = 1 << 28  # limit on a contract in bytes, the same in C++; it may hold tensors of state


def append_to_zip(path: Path, text: str) -> None:
    """Add the contract to a zip archive that torch wrote, as one of its extra files."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        top = archive.namelist()[0].split("/")[0]
        archive.writestr(zipfile.ZipInfo(f"{top}/{RECORD}"), text)  # dated 1980: reproducible


def read(text: str | bytes) -> Contract:
    """Parse the contract of an artifact. Raises ArtifactError by the same rules as cpp/src/contract_json.cpp."""
    try:
        found = from_json(Contract, text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise ArtifactError(f"not a valid Contract: {error}") from error
    if missing := {"target", "device"} - json.loads(text).keys():
        raise ArtifactError(f"not a valid Contract: {min(missing)} is missing")
    if problem := _problem(found) or _state_problem(found):
        raise ArtifactError(f"not a valid Contract: {problem}")
    return found


def _problem(contract: Contract) -> str:
    """Return what is wrong with a contract, except for its state; "" if nothing is."""
    if contract.device not in DEVICES:
        return f"device {contract.device!r} is not {' or '.join(DEVICES)}"
    if not precisions.is_valid(contract.precision):
        return f"there is no precision {contract.precision!r}"
    for sizes in contract.entries:
        if not sizes or any(n not in contract.symbols or not contract.symbols[n].allows(s) for n, s in sizes.items()):
            return f"it has an entry for {sizes}, which are not sizes that it allows"
    if len({tuple(sorted(sizes)) for sizes in contract.entries}) > 1:
        return "its entries have sizes of different symbols"
    if contract.entries and any(bounds.choices for bounds in contract.symbols.values()):
        return "it has entries beside choices"
    state = tuple(tensor.spec for tensor in contract.state.tensors) if contract.state else ()
    for spec in (*contract.inputs, *contract.outputs, *state):
        if spec.dtype not in ITEM_BYTES:
            return f"{spec.name} has an unknown dtype, {spec.dtype}"
        if not all(0 <= dim < 1 << 63 for dim in spec.shape if isinstance(dim, int)):
            return f"{spec.name} has a dimension that is not a size"
    return ""


def _state_problem(contract: Contract) -> str:
    """Return what is wrong with a contract's state; "" if nothing is, or if it has none."""
    state = contract.state
    if state is None:
        return ""
    if len({tensor.name for tensor in state.tensors}) != len(state.tensors) or not state.tensors:
        return "its state has no tensors, or two with the same name"
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
    """Return what is wrong with the initial value, which must fill a shape that broadcasts to the tensor's."""
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
    """Return the contract in a `.pt` or `.pt2` file. Raises ArtifactError if it has none or the file is broken."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.endswith("/" + RECORD)), None)
            if name is None:
                raise ArtifactError(f"{path} carries no contract", "export it with exporter")
            with archive.open(name) as record:
                text = record.read(LARGEST + 1)
    except ArtifactError:
        raise
    except Exception as error:  # of zipfile or zlib; RuntimeError: a password, NotImplementedError: a method
        raise ArtifactError(f"{path} cannot be read: {error or type(error).__name__}", "export it again") from error
    return parse(text, path)


def require_whole(path: Path) -> None:
    """Raise ArtifactError if the CRC-32 of a member of the archive is wrong; ignore files that are not archives.

    Use this for a file whose hash is in no record: torch's readers do not check the CRC-32.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()
                if broken is not None:
                    raise ArtifactError(
                        f"{path} was altered: the CRC-32 of {broken} differs from the archive's directory",
                        "export it again",
                    )
    except ArtifactError:
        raise
    except Exception as error:  # as in `read_zip`
        raise ArtifactError(f"{path} cannot be read: {error or type(error).__name__}", "export it again") from error


def require_recorded(inside: Contract, recorded: Contract, path: Path) -> None:
    """Raise ArtifactError if the contract inside the artifact at `path` differs from its record in the manifest."""
    found, known = (json.loads(to_json(one)) for one in (inside, recorded))  # as they are written
    if differing := ", ".join(name for name in found if found[name] != known[name]):
        cause = f"the contract inside {path.name} differs from the manifest's: {differing}"
        raise ArtifactError(cause, "download the bundle again, or export again")


def parse(text: str | bytes, path: Path) -> Contract:
    """Parse the contract of the artifact at `path`. Raises ArtifactError if it is invalid or too large."""
    if len(text) > LARGEST:
        raise ArtifactError(f"{path}: its contract has more than {LARGEST:,} bytes", "export it again")
    try:
        return read(text)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: its contract is {error}", error.remedy or "export it again") from error
