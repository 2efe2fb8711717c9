"""What two builds of one file do not share, and where it lies. Nothing is run, and nothing is unpickled.

- `identical`: every byte is the same.
- `known places`: what computes is the same, the rest is named: times, temporary paths, generated names, debug
  information.
- `numbers`: weights or constants are not the same.
- `differs`: anything else.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exporter import bundle, sums
from exporter.targets.onnx import PROPERTY

Status = Literal["identical", "known places", "numbers", "differs"]
STATUSES: tuple[Status, ...] = ("identical", "known places", "numbers", "differs")
DETAILS = 3  # how many are told of one file
SLACK = 1 << 24  # bytes by which a member may be larger than its twin before it is no longer read
CHUNK = 1 << 20  # numbers that are compared at a time
SHF_ALLOC, BUILD_ID = 2, ".note.gnu.build-id"  # ELF: the flag of a section that is loaded; a hash of the whole file
INDEX = (*range(0x28, 0x30), *range(0x3A, 0x40))  # where an ELF header of 64 bits tells of sections; no loader asks
WEIGHTS = (".lrodata", ".ldata")  # where inductor's linker puts them

_GENERATED = re.compile(rb"c[a-z2-7]{51}")  # inductor's names: a hash of what went into the file
_FOLDER = re.compile(rb"[^\s\"']*/(?=<generated>)")
_COMMAND = re.compile(rb"\n{0,2}// (?:Compile|Link) cmd\n// [^\n]*\n?")
_ADDRESS = re.compile(rb" at 0x[0-9a-f]+")
_STORAGE = re.compile(r"torch (\w+)Storage")
_TYPES = {
    "Float": "<f4", "Double": "<f8", "Half": "<f2", "BFloat16": "bfloat16", "Long": "<i8", "Int": "<i4", "Short": "<i2",
    "Char": "i1", "Byte": "u1", "Bool": "u1", "ComplexFloat": "<c8", "ComplexDouble": "<c16",
}  # fmt: skip
# torch.export's numbers of dtypes (torch/_export/serde/schema.py, ScalarType).
_SCALARS = {
    1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f2", 7: "<f4", 8: "<f8", 10: "<c8", 11: "<c16", 12: "u1",
    13: "bfloat16",
}  # fmt: skip
_CONFIG = re.compile(r"(.*/data/(?:weights|constants)/)model_\w+_config\.json")
Finding = tuple[Status, str]


@dataclass(frozen=True)
class Difference:
    """What was found of one file; `detail` names the places."""

    path: str
    status: Status
    detail: str = ""


def compare(old: Path, new: Path) -> Difference:
    """Two builds of a file of the same name: an archive of torch's, an ONNX model or its weights, or any other."""
    if old.stat().st_size == new.stat().st_size and sums.of(old) == sums.of(new):
        return Difference(old.name, "identical")
    try:
        return conclude(old.name, _findings(old, new))
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        return Difference(old.name, "differs", f"it cannot be read: {error}")


def _findings(old: Path, new: Path) -> Iterable[Finding]:
    if old.name.endswith((".onnx", ".onnx.data")):
        return _models(old, new)
    if old.name.endswith(bundle.CACHE):
        return _caches(old, new)
    if zipfile.is_zipfile(old) and zipfile.is_zipfile(new):
        return _archives(old, new)
    return [("differs", "its bytes are not the same")]


def conclude(name: str, findings: Iterable[Finding]) -> Difference:
    """The worst of what was found of a file whose bytes differ, with the places."""
    found = list(dict.fromkeys(findings)) or [("known places", "the layout of the file")]
    worst = max((status for status, _ in found), key=STATUSES.index)
    told = [detail for status, detail in found if status == worst]
    more = [f"{len(told) - DETAILS} more"] if len(told) > DETAILS else []
    return Difference(name, worst, "; ".join([*told[:DETAILS], *more]))


def records(old: Any, new: Any, known: Iterable[str], place: str = "") -> Iterator[Finding]:
    """Differences of two JSON values; under the keys `known`, they are in a known place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            if key in known:
                if old.get(key) != new.get(key):
                    yield "known places", key
            else:
                yield from records(old.get(key), new.get(key), known, f"{place}.{key}" if place else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from records(one, other, known, f"{place}[{index}]")
    elif old != new:
        numbers = all(isinstance(value, float) for value in (old, new))
        told = f"{place} was {_short(old)}, is {_short(new)}"
        yield ("numbers" if numbers else "differs"), told


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _caches(old: Path, new: Path) -> Iterator[Finding]:
    """Of two caches of just-in-time variants, by the sources in them."""
    before, after = (_generated(path) for path in (old, new))
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield "differs", name
    yield "known places", "its pickles and libraries, which were not compared: they hold the folder of their process"


def _generated(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        members = (
            one for one in archive.infolist() if one.filename.endswith((".py", ".cpp")) and one.file_size < SLACK
        )
        return {one.filename: _plain(archive.read(one)) for one in members}


def _archives(old: Any, new: Any, prefix: str = "") -> Iterator[Finding]:
    """Of two zip archives, paths or files."""
    with zipfile.ZipFile(old) as one, zipfile.ZipFile(new) as other:
        names, twins = one.namelist(), other.namelist()
        if len(set(names)) < len(names):
            yield "differs", f"{prefix}a member comes twice"
        pairs = _pairs(names, twins)
        for name in (*(n for n in names if n not in pairs), *(n for n in twins if n not in pairs.values())):
            yield "differs", f"{prefix}{name} is in one of them only"
        if [pairs.get(name) for name in names] != twins:
            yield "known places", "the order of the members"
        types = _types(other)
        for name, twin in pairs.items():
            before, after = one.getinfo(name), other.getinfo(twin)
            if name != twin:
                yield "known places", "generated names"
            if before.date_time != after.date_time:
                yield "known places", "times of the members"
            if before.file_size > 2 * after.file_size + SLACK:
                yield "differs", f"{prefix}{twin} had {before.file_size} bytes, has {after.file_size}"
            elif (then := one.read(before)) != (now := other.read(after)):
                yield from _member(f"{prefix}{twin}", then, now, types.get(twin))


def _pairs(names: Sequence[str], twins: Sequence[str]) -> dict[str, str]:
    """Members that belong together: of one name, or else of one name but for what is generated in it."""
    pairs = {name: name for name in names if name in twins}
    waiting: dict[bytes, list[str]] = {}
    for twin in twins:
        if twin not in pairs:
            waiting.setdefault(_GENERATED.sub(b"", twin.encode()), []).append(twin)
    for name in names:
        if name not in pairs and (alike := waiting.get(_GENERATED.sub(b"", name.encode()))):
            pairs[name] = alike.pop(0)
    return pairs


def _member(name: str, old: bytes, new: bytes, kind: str | None) -> Iterator[Finding]:
    """Of one member of an archive that is not the same."""
    if name.endswith("/.data/serialization_id"):
        yield "known places", "torch's hash of the members"
    elif name.endswith(".debug_pkl"):
        yield "known places", "places in the source, for tracebacks"
    elif kind is not None:
        yield _numbers(name, kind, old, new)
    elif name.endswith(".cpp"):
        yield from _sources(name, old, new)
    elif name.endswith(".so"):
        yield from _libraries(name, old, new)
    elif name.endswith("/models/model.json"):
        yield from _graphs(name, old, new)
    elif zipfile.is_zipfile(io.BytesIO(new)):
        yield from _archives(io.BytesIO(old), io.BytesIO(new), f"{name}: ")
    else:
        yield "differs", name


def _graphs(name: str, old: bytes, new: bytes) -> Iterator[Finding]:
    """Of two graphs of torch.export's, whose nodes tell where in the source they come from."""
    for status, told in records(json.loads(old), json.loads(new), ("stack_trace",)):
        known = status == "known places"
        yield status, "places in the source, for tracebacks" if known else f"{name}: {told}"


def _sources(name: str, old: bytes, new: bytes) -> Iterator[Finding]:
    """Of two sources of a package: their names, where they lay, and the commands that were called with them."""
    before, after = _plain(old).splitlines(), _plain(new).splitlines()
    if before == after:
        yield "known places", "names, folders, addresses and commands in generated sources"
    else:
        lines = enumerate(zip(before, after, strict=False), 1)
        line = next((number for number, (one, other) in lines if one != other), min(len(before), len(after)) + 1)
        yield "differs", f"{name}, line {line}"


def _plain(source: bytes) -> bytes:
    source = _GENERATED.sub(b"<generated>", _ADDRESS.sub(b"", _COMMAND.sub(b"\n", source)))
    return _FOLDER.sub(b"", source).rstrip()


def _libraries(name: str, old: bytes, new: bytes) -> Iterator[Finding]:
    """Of two shared libraries: what is loaded, section by section; all else is debug information."""
    from elftools.elf.elffile import ELFFile

    try:
        one, other = (ELFFile(io.BytesIO(data)) for data in (old, new))
        segments, twins = ([dict(segment.header) for segment in elf.iter_segments()] for elf in (one, other))
        sections = [[s for s in elf.iter_sections() if s["sh_flags"] & SHF_ALLOC] for elf in (one, other)]
        places = [[(s.name, s["sh_offset"], s["sh_size"]) for s in found] for found in sections]
    except Exception as error:  # whatever a broken library raises
        yield "differs", f"{name}: {error}"
        return
    yield "known places", "debug information and build ID of the library"
    if segments != twins or places[0] != places[1]:
        yield "differs", f"{name}: the sections have other sizes"
        return
    before, after = bytearray(old), bytearray(new)
    for byte in INDEX:
        before[byte] = after[byte] = 0
    for section, start, size in places[0]:
        here = slice(start, start + size)
        if before[here] != after[here]:
            yield _section(name, section, bytes(before[here]), bytes(after[here]))
            before[here] = after[here] = bytes(len(before[here]))
    for segment in segments:
        here = slice(segment["p_offset"], segment["p_offset"] + segment["p_filesz"])
        if segment["p_type"] == "PT_LOAD" and before[here] != after[here]:
            yield "differs", f"{name}: between its sections"


def _section(name: str, section: str, old: bytes, new: bytes) -> Finding:
    """Of a section that is loaded."""
    if section == BUILD_ID:
        return "known places", "debug information and build ID of the library"
    if section in WEIGHTS:
        return "numbers", f"{name}: {sum(a != b for a, b in zip(old, new, strict=True))} of {len(new)} bytes of weights"
    if _blotted(old) == _blotted(new):
        return "known places", "generated names and folders in the library"
    return "differs", f"{name}: {section}"


def _blotted(data: bytes) -> bytes:
    """Without the strings that hold a generated name, and the zeros after them; all else stays where it was."""
    parts, blot = [], False
    for part in data.split(b"\0"):
        blot = _GENERATED.search(part) is not None or (blot and not part)
        parts.append(b"\1" * (len(part) + 1) if blot else part + b"\0")
    return b"".join(parts)


def _types(archive: zipfile.ZipFile) -> dict[str, str]:
    """The number type of each member that holds a tensor's numbers, as far as the archive's records tell."""
    found: dict[str, str] = {}
    for name in archive.namelist():
        folder, _, file = name.rpartition("/")
        if file in ("data.pkl", "constants.pkl"):
            stored = _storages(archive.read(name))
            found |= {f"{folder}/{file.removesuffix('.pkl')}/{key}": kind for key, kind in stored.items()}
        elif config := _CONFIG.fullmatch(name):
            for told in json.loads(archive.read(name))["config"].values():
                if not told["use_pickle"] and (kind := _SCALARS.get(told["tensor_meta"]["dtype"])):
                    found[config[1] + told["path_name"]] = kind
    return found


def _storages(data: bytes) -> dict[str, str]:
    """The number type of each storage that a pickle of torch's refers to, by its key: read as text, not unpickled.

    A persistent ID is the tuple ("storage", class, key, place, size); what was said before stands in the memo.
    """
    found, pushed, memo = dict[str, str](), list[Any](), dict[Any, Any]()
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = pushed[-1] if pushed else None
        elif code.name in ("BINGET", "LONG_BINGET"):
            pushed.append(memo.get(argument))
        elif argument is not None:
            pushed.append(argument)
        elif code.name == "BINPERSID" and len(pushed) >= 5:
            _, storage, key, _, _ = pushed[-5:]
            if (named := _STORAGE.fullmatch(str(storage))) and named[1] in _TYPES:
                found[str(key)] = _TYPES[named[1]]
    return found


def _numbers(name: str, kind: str, old: bytes, new: bytes) -> Finding:
    """How far apart the numbers of two members are; a bfloat16 is the upper half of a float32."""
    import numpy as np

    def read(data: bytes) -> Any:
        if kind != "bfloat16":
            return np.frombuffer(data, kind)
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)

    if len(old) != len(new):
        return "differs", f"{name} had {len(old)} bytes, has {len(new)}"
    return "numbers", f"{name}: {_apart(read(old), read(new))}"


def _apart(old: Any, new: Any) -> str:
    """How many numbers of two arrays of one shape differ, and by how much at most."""
    import numpy as np

    count, furthest = 0, 0.0
    before, after = old.reshape(-1), new.reshape(-1)
    for start in range(0, after.size, CHUNK):
        one, other = (numbers[start : start + CHUNK] for numbers in (before, after))
        wide = np.complex128 if one.dtype.kind == "c" else np.float64
        one, other = one.astype(wide), other.astype(wide)
        apart = (one != other) & ~(np.isnan(one) & np.isnan(other))
        count += int(apart.sum())
        with np.errstate(invalid="ignore"):
            far = np.abs(one[apart] - other[apart])
        furthest = max(furthest, float(np.nan_to_num(far, nan=np.inf).max(initial=0.0)))
    return f"{count} of {after.size} numbers, by {furthest:.2g} at most" if count else "signs of zeros, or forms of NaN"


def _models(old: Path, new: Path) -> Iterator[Finding]:
    """Of two ONNX models with their weights, wherever these lie."""
    import onnx
    from google.protobuf.message import DecodeError

    one, other = (path.with_name(path.name.removesuffix(".data")) for path in (old, new))
    try:
        before, after = onnx.load(str(one)), onnx.load(str(other))
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        yield "differs", f"it cannot be read: {error}"
        return
    weights, twins = _strip(before), _strip(after)
    if before.SerializeToString(deterministic=True) != after.SerializeToString(deterministic=True):
        yield "differs", "the graph"
    elif any(tensor.dims != twin.dims for tensor, twin in zip(weights, twins, strict=True)):
        yield "differs", "shapes of weights"
    else:
        for tensor, twin in zip(weights, twins, strict=True):
            if tensor != twin:
                arrays = map(onnx.numpy_helper.to_array, (tensor, twin))
                yield "numbers", f"{twin.name or 'a constant'}: {_apart(*arrays)}"
    if old.suffix == ".onnx":
        yield "known places", "places in the source, for tracebacks"


def _strip(model: Any) -> list[Any]:
    """Take out of a model its weights, which are returned, and the translator's notes."""
    import onnx

    weights: list[Any] = []
    notes = [entry for entry in model.metadata_props if entry.key != PROPERTY]
    for entry in notes:
        model.metadata_props.remove(entry)
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        message = waiting.pop()
        for holder in (message, *message.node, *message.value_info, *getattr(message, "input", ())):
            if hasattr(holder, "metadata_props"):
                holder.ClearField("metadata_props")
            if hasattr(holder, "doc_string"):
                holder.ClearField("doc_string")
        tensors = [*getattr(message, "initializer", ())]
        for attribute in (attribute for node in message.node for attribute in node.attribute):
            tensors += [attribute.t] if attribute.HasField("t") else []
            waiting += [attribute.g] if attribute.HasField("g") else []
            waiting += attribute.graphs
        for tensor in tensors:
            kept = onnx.TensorProto()
            kept.CopyFrom(tensor)
            weights.append(kept)
            name, kind = tensor.name, tensor.data_type
            tensor.Clear()
            tensor.name, tensor.data_type = name, kind
    return weights
