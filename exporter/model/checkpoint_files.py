"""Reading files of weights without running any code that they contain."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
import safetensors.torch
import torch

from exporter.core import source_lines
from exporter.core.errors import RecipeError

INDEX = ".index.json"
LFS_POINTER = b"version https://git-lfs"  # what git leaves in place of the file
_COPY = "copy or save it again"
_SCALAR = numpy.float64(0).__reduce__()[0]
# Harmless types that training scripts save beside the weights, and that torch does not allow by default.
_HARMLESS: list[Any] = [
    argparse.Namespace,
    _SCALAR,
    (_SCALAR, "numpy.core.multiarray.scalar"),  # as numpy 1 wrote it
    numpy.dtype,
    *(type(numpy.dtype(name)) for name in ("float32", "float64", "int32", "int64")),
]


def read(path: Path) -> Mapping[Any, Any]:
    """Return the content of a checkpoint: tensors by key, possibly in nested containers, all on the CPU.

    Args:
        path: `.safetensors`, `.pt`, `.pth`, `.bin`, `.ckpt`, or the `.index.json` of a sharded checkpoint.

    Raises:
        RecipeError: the file is missing, damaged, of an unsupported format, or holds more than weights.
    """
    if not path.is_file():
        raise RecipeError(
            f"there is no checkpoint {path}", "check the path; give a file, or the .index.json of a folder"
        )
    if path.name.endswith(INDEX):
        return _read_shards(path)
    if path.suffix not in _READERS:
        raise RecipeError(
            f"{path} is not a supported checkpoint", f"give one of {', '.join(_READERS)}, or the *{INDEX}"
        )
    with path.open("rb") as file:
        head = file.read(len(LFS_POINTER))
    if not head:
        raise RecipeError(f"{path} is empty", _COPY)
    if head == LFS_POINTER:
        raise RecipeError(f"{path} is a git-lfs pointer, not the weights", "run `git lfs pull`")
    try:
        found = _READERS[path.suffix](path)
    except pickle.UnpicklingError as error:
        raise _more_than_weights(path, error) from error
    except RecipeError:
        raise
    except Exception as error:  # truncated files raise many kinds of errors
        raise RecipeError(
            f"{path} cannot be read: {source_lines.named(error)}", f"it is truncated or damaged: {_COPY}"
        ) from error
    if not isinstance(found, Mapping):
        raise RecipeError(f"{path} holds a {type(found).__name__}, not a state dict", "save model.state_dict()")
    return found


def _read_torch(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    if zipped and (kind := _program(path)):
        raise RecipeError(f"{path} is {kind}, not a checkpoint", "save model.state_dict()")
    with torch.serialization.safe_globals(_HARMLESS):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


def _program(path: Path) -> str:
    """Return the kind of saved program in a zip archive, or ""."""
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
    if "constants.pkl" in names:
        return "a TorchScript program"
    return "an exported program" if names & {"archive_format", "serialized_exported_program.json"} else ""


_READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": safetensors.torch.load_file,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".bin": _read_torch,
    ".ckpt": _read_torch,
}


def _more_than_weights(path: Path, error: Exception) -> RecipeError:
    named = re.search(r"GLOBAL (\S+)", str(error))
    module, _, attribute = named[1].rpartition(".") if named else ("", "", "")
    if not named or _ends_within(path, module, attribute):
        return RecipeError(f"{path} cannot be read: its pickle is incomplete", f"it is truncated or damaged: {_COPY}")
    if "distributed" in module:
        return _sharded(path, attribute)
    return RecipeError(
        f"{path} holds more than weights: an object of {named[1]}, which could run code when read",
        "save only the weights: torch.save(model.state_dict(), FILE)",
    )


def _ends_within(path: Path, module: str, attribute: str) -> bool:
    """Return whether a file ends within these two lines of a pickle, as a truncated file of the old format may.

    The reader has taken the last byte for the end of the line.
    """
    found = f"{module}\n{attribute}".strip().encode()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(found) - 2))
        return file.read()[:-1].strip().endswith(found)


def refuse_subclasses(path: Path, tensors: Mapping[str, Any]) -> None:
    """Raise RecipeError if a tensor is a shard or another subclass of torch.Tensor."""
    for key, value in tensors.items():
        if isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise _sharded(path, type(value).__name__, f" at {key}")


def _sharded(path: Path, kind: str, where: str = "") -> RecipeError:
    return RecipeError(
        f"{path} holds a {kind}{where}, not a plain tensor",
        "gather it before saving: torch.distributed.checkpoint.state_dict.get_model_state_dict with "
        "StateDictOptions(full_state_dict=True)",
    )


def _read_shards(index: Path) -> dict[str, torch.Tensor]:
    """Return every tensor that the index lists, read from the file it is listed under."""
    by_file: dict[str, list[str]] = {}
    for key, file in _weight_map(index).items():
        by_file.setdefault(file, []).append(key)
    tensors: dict[str, torch.Tensor] = {}
    for file, keys in by_file.items():
        shard = read(index.parent / file)
        if lost := [key for key in keys if key not in shard]:
            raise RecipeError(f"{index.parent / file} lacks {lost[0]}, which {index.name} lists there", _COPY)
        tensors |= {key: shard[key] for key in keys}
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = [PurePosixPath(file) for file in found.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"{index} is not an index of shards: {source_lines.named(error)}", "it needs a weight_map"
        ) from error
    for file in files:
        # Compare the names only: in the hub's cache every file is a link to another folder.
        if file.is_absolute() or ".." in file.parts or "\\" in str(file) or file.name.endswith(INDEX):
            raise RecipeError(
                f"{index} names {file}, which is outside its folder", "do not use a checkpoint that you do not trust"
            )
    return {str(key): str(file) for key, file in found.items()}
