"""How onnxruntime is to load a model: the level of its graph optimizations and options of its session.

A model's metadata carries them if they are not onnxruntime's defaults.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from exporter.core.errors import ArtifactError, ExportError

if TYPE_CHECKING:
    from exporter.targets import Options

PROPERTY = "exporter.graph_optimization"
SESSION = "exporter.session_options"
NAMES = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}  # members of onnxruntime.GraphOptimizationLevel
MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}  # members of onnxruntime.ExecutionMode
SWITCHES = ("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse")
KNOWN = ("execution_mode", *SWITCHES, "inter_op_num_threads")  # attributes
ENTRIES = ("session.", "optimization.", "memory.", "ep.", "mlas.")  # beginnings of configuration entries
METADATA = 14  # the field of metadata_props in ONNX's ModelProto; an entry has its key in field 1 and its value in 2


def of(path: Path, asked: str = "all") -> Any:
    """Return the level with which the model at `path` is to be loaded, as a GraphOptimizationLevel.

    `asked` replaces the model's own unless it is "all". Only the file's metadata is read, because a model may have
    gigabytes of weights.
    """
    import onnxruntime as ort

    return getattr(ort.GraphOptimizationLevel, NAMES[recorded(path) if asked == "all" else asked])


def asked(options: Options) -> str:
    """Return the level with which a model exported with these options is to be loaded.

    In float16 on a CPU, the default is "extended": onnxruntime 1.31 crashes with "all", in NchwcTransformer, on models
    with nn.MultiheadAttention or recurrent layers. "all" adds only the layout of float32 images to "extended".
    """
    crashes = options.precision == "fp16" and options.device == "cpu" and options.graph_optimization == "all"
    return "extended" if crashes else options.graph_optimization


def lower(options: Options) -> tuple[str, ...]:
    """Return the levels below the default one; none if a level was chosen."""
    levels = tuple(NAMES)
    return levels[levels.index(asked(options)) + 1 :] if options.graph_optimization == "all" else ()


def recorded(path: Path) -> str:
    """Return the level in the model's metadata; "all" if there is none, or if the file is broken.

    Raises ArtifactError for a level that is not in NAMES.
    """
    level = _property(path, PROPERTY) or "all"
    if level not in NAMES:
        cause = f"{path} is to run with {level!r}, a level of optimizations that is not known here"
        raise ArtifactError(cause, "upgrade exporter")
    return level


def session_options(path: Path) -> tuple[str, ...]:
    """Return the NAME=VALUE of session options in the model's metadata. Raises ArtifactError if it is not a list."""
    text = _property(path, SESSION) or "[]"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ArtifactError(f"{path} has session options that cannot be read: {text[:80]}", "export it again")
    return tuple(found)


def configure(settings: Any, given: Sequence[str]) -> None:
    """Set options of an onnxruntime.SessionOptions, given as NAME=VALUE. Raises ExportError as `parse` does."""
    import onnxruntime as ort

    for name, value in map(parse, given):
        if "." in name:
            settings.add_session_config_entry(name, value)
        else:
            setattr(settings, name, getattr(ort.ExecutionMode, str(value)) if name == "execution_mode" else value)


def parse(given: str) -> tuple[str, str | bool | int]:
    """Return name and value of a session option given as NAME=VALUE: an attribute, or an entry if it has a dot.

    The value of `execution_mode` is the name of a member of onnxruntime.ExecutionMode. Raises ExportError for an option
    that is not known, or for a value of another type.
    """
    name, equals, text = given.partition("=")
    if name.startswith(ENTRIES) and equals:
        return name, text
    if name == "execution_mode" and text in MODES:
        return name, MODES[text]
    if name in SWITCHES and text in ("True", "False"):
        return name, text == "True"
    if name == "inter_op_num_threads" and text.isdecimal() and text.isascii():
        return name, int(text)
    raise ExportError(
        f"--session-option {given} is not an option of an onnxruntime session",
        f"give {', '.join(KNOWN)} (execution_mode=parallel, enable_mem_pattern=False), or a configuration entry such "
        "as session.intra_op.allow_spinning=0",
    )


def _property(path: Path, key: str) -> str:
    """Return a property in the model's metadata; "" if there is none, or if the file is broken."""
    try:
        with path.open("rb") as file:
            for number, content in _fields(file, path.stat().st_size):
                entry = dict(_fields(io.BytesIO(content), len(content))) if number == METADATA else {}
                if entry.get(1) == key.encode():
                    return entry.get(2, b"").decode(errors="replace")
    except (OSError, ValueError):  # onnxruntime says better what is wrong
        return ""
    return ""


def _fields(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the short fields of a message that have a length. Raises ValueError at its end.

    Reference: protobuf.dev/programming-guides/encoding.
    """
    while file.tell() < size:
        number, kind = divmod(_varint(file), 8)
        if kind == 2:
            length = _varint(file)
            if number in (1, 2, METADATA) and length < 2**16:
                content = file.read(length)
                if len(content) < length:
                    raise ValueError("an incomplete field")
                yield number, content
            else:
                file.seek(length, io.SEEK_CUR)
        elif kind == 0:
            _varint(file)
        elif kind in (1, 5):
            file.seek(8 if kind == 1 else 4, io.SEEK_CUR)
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(file: BinaryIO) -> int:
    value, shift = 0, 0
    while True:
        byte = file.read(1)
        if not byte or shift > 63:
            raise ValueError("an incomplete number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
