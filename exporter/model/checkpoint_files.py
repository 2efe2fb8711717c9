"""Files of weights, read without running anything that they hold."""

from __future__ import annotations

import argparse
import json
import pickle
import re
import sys
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
LFS_POINTER = b"version https://git-lfs"  # what git leaves in a file's place
_COPY = "copy or save it again"
_SCALAR = numpy.float64(0).__reduce__()[0]
# What training scripts keep beside the weights, and torch does not know as harmless.
_HARMLESS: list[Any] = [
    argparse.Namespace,
    _SCALAR,
    (_SCALAR, "numpy.core.multiarray.scalar"),  # as numpy 1 wrote it
    numpy.dtype,
    *(type(numpy.dtype(name)) for name in ("float32", "float64", "int32", "int64")),
]


def read(path: Path) -> Mapping[Any, Any]:
    """What a checkpoint holds: tensors by key, perhaps in containers within containers, all on the CPU.

    Args:
        path: `.safetensors`, `.pt`, `.pth`, `.bin`, `.ckpt`, or the `.index.json` of one in several files.

    Raises:
        RecipeError: it is missing, damaged, of another format, or holds more than weights.
    """
    if not path.is_file():
        raise RecipeError(f"there is no checkpoint {path}", "check the path; a folder's .index.json or file is meant")
    if path.name.endswith(INDEX):
        return _read_shards(path)
    if path.suffix not in _READERS:
        raise RecipeError(
            f"{path} is no checkpoint that can be read here", f"give one of {', '.join(_READERS)}, or the *{INDEX}"
        )
    with path.open("rb") as file:
        head = file.read(len(LFS_POINTER))
    if not head:
        raise RecipeError(f"{path} is empty", _COPY)
    if head == LFS_POINTER:
        raise RecipeError(f"{path} is a pointer of git-lfs, not the weights", "`git lfs pull` fetches them")
    try:
        found = _READERS[path.suffix](path)
    except pickle.UnpicklingError as error:
        raise _more_than_weights(path, error) from error
    except RecipeError:
        raise
    except Exception as error:  # a file that was cut short fails in as many ways as it has places
        raise RecipeError(
            f"{path} cannot be read: {source_lines.named(error)}", f"it is cut short or damaged: {_COPY}"
        ) from error
    if not isinstance(found, Mapping):
        raise RecipeError(f"{path} holds a {type(found).__name__}, no state dict", "save model.state_dict()")
    return found


def _read_torch(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    if zipped and (kind := _program(path)):
        raise RecipeError(f"{path} is {kind}, no checkpoint", "save model.state_dict()")
    with torch.serialization.safe_globals(_HARMLESS):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


def _program(path: Path) -> str:
    """What kind of saved program a zip archive is, if any."""
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
    # A file of the old format may end within a name.
    if not named or (
        module in ("torch", "torch._utils", "collections") and not hasattr(sys.modules[module], attribute)
    ):
        return RecipeError(f"{path} cannot be read: it holds no whole pickle", f"it is cut short or damaged: {_COPY}")
    if "distributed" in module:
        return _sharded(path, attribute)
    return RecipeError(
        f"{path} holds more than weights: an object of {named[1]}, which could run code when it is read",
        "save its weights alone: torch.save(model.state_dict(), FILE)",
    )


def refuse_subclasses(path: Path, tensors: Mapping[str, Any]) -> None:
    """RecipeError when a tensor is only a part of one, or not what its bytes say."""
    for key, value in tensors.items():
        if isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise _sharded(path, type(value).__name__, f" at {key}")


def _sharded(path: Path, kind: str, where: str = "") -> RecipeError:
    return RecipeError(
        f"{path} holds a {kind}{where}, not a plain tensor",
        "gather it before it is saved: torch.distributed.checkpoint.state_dict.get_model_state_dict with "
        "StateDictOptions(full_state_dict=True)",
    )


def _read_shards(index: Path) -> dict[str, torch.Tensor]:
    """The tensors of every file that the index names, each from the file that it says."""
    by_file: dict[str, list[str]] = {}
    for key, file in _weight_map(index).items():
        by_file.setdefault(file, []).append(key)
    tensors: dict[str, torch.Tensor] = {}
    for file, keys in by_file.items():
        shard = read(index.parent / file)
        if lost := [key for key in keys if key not in shard]:
            raise RecipeError(f"{index.parent / file} lacks {lost[0]}, which {index.name} says it has", _COPY)
        tensors |= {key: shard[key] for key in keys}
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = [PurePosixPath(file) for file in found.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(
            f"{index} is no index of shards: {source_lines.named(error)}", "it needs a weight_map"
        ) from error
    for file in files:
        # By its words alone: in the hub's cache every file is a link to another folder.
        if file.is_absolute() or ".." in file.parts or "\\" in str(file) or file.name.endswith(INDEX):
            raise RecipeError(f"{index} names {file}, outside its own folder", "do not trust it")
    return {str(key): str(file) for key, file in found.items()}
