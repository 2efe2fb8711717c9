"""Identifying a saved file by its content, and rejecting files that hold no program to export again."""

from __future__ import annotations

import importlib
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from exporter.core.errors import RecipeError
from exporter.model import mapped_program, tensor_files

EXPORTED, SCRIPTED = "ExportedProgram", "TorchScript"
_NESTED = re.compile(r"L\['(\w+)'\]\['(\w+)'\]")  # an input in a condition


def kind(path: Path) -> str:
    """Return EXPORTED or SCRIPTED. Raises RecipeError, which says what to give instead, for anything else."""
    names = _names(path)
    if any("/aotinductor/" in name or name.endswith(".so") for name in names):
        raise RecipeError(
            f"{path} is an AOTInductor package: machine code, which cannot be exported again",
            "give the ExportedProgram that it was compiled from, or the model",
        )
    if any(name.endswith("/constants.pkl") for name in names):
        return SCRIPTED
    if any(name.endswith("serialized_exported_program.json") or _is_model(name) for name in names):
        return EXPORTED
    raise _refusal(path, names)


def _names(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def _is_model(name: str) -> bool:
    parts = name.split("/")
    return "models" in parts[:-1] and parts[-1].endswith(".json")


def _refusal(path: Path, names: Sequence[str]) -> RecipeError:
    """Return the error for a file that is not a program, without running any code in it."""
    if not any(name.endswith("/data.pkl") for name in names) and not _is_pickle(path):
        return RecipeError(
            f"{path} holds neither TorchScript nor an ExportedProgram", "check that it is complete, and the right file"
        )
    try:
        held = torch.load(path, weights_only=True, map_location="cpu")
    except Exception:  # any error of an unpickler that allows only tensors
        return RecipeError(
            f"{path} holds a pickled Python object, which only its own code can read",
            "save the model with torch.export.save or torch.jit.save, or save its state_dict() and name the model: "
            "exporter export MODEL --checkpoint FILE",
        )
    what = f"a dict of {len(held)} entries" if isinstance(held, dict) else type(held).__name__
    return RecipeError(
        f"{path} is a checkpoint ({what}): weights without a program",
        f"name the model that they belong to: exporter export MODEL --checkpoint {path.name}",
    )


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"\x80"


def load_scripted(path: Path) -> torch.jit.ScriptModule:
    """Load the program in eval mode, on the CPU. Raises RecipeError if torch cannot read it."""
    try:
        return _load_scripted(path)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise RecipeError(
                f"torch.jit.load cannot read {path}: {_cause(error)}",
                "use the torch version that saved it, and import the library that registers its operators",
            ) from error
    try:
        importlib.import_module("torchvision")  # registers its operators

        return _load_scripted(path)
    except (ImportError, RuntimeError) as error:
        raise RecipeError(f"{path} needs operators of torchvision: {_cause(error)}", "install torchvision") from error


def _load_scripted(path: Path) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        loaded: torch.jit.ScriptModule = torch.jit.load(str(path), map_location="cpu")
    return loaded.eval()


def load_exported(path: Path) -> torch.export.ExportedProgram:
    """Load the program, with conditions that torch can check. Raises RecipeError if torch cannot read it."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "The given buffer is not writable", UserWarning
            )  # raised by torch's own loader
            program = mapped_program.read(path)
    except Exception as error:  # a broken archive raises many kinds of errors
        raise RecipeError(
            f"torch.export.load cannot read {path}: {_cause(error)}", "use the torch version that saved it"
        ) from error
    _name_keywords(program)
    return program


def _name_keywords(program: torch.export.ExportedProgram) -> None:
    """Write `L['z']` for `L['k']['z']` in the conditions of a model with `**k`, which torch itself cannot find."""
    kwargs = program.call_spec.in_spec.child(1).context if program.call_spec.in_spec else ()
    names = {spec.arg.name for spec in program.graph_signature.input_specs}

    def found(match: re.Match[str]) -> str:
        first, second = match.groups()
        is_keyword = second in kwargs and f"{first}_{second}" not in names
        return f"L['{second}']" if is_keyword else match.group()

    if hasattr(program, "_guards_code"):
        program._guards_code = [_NESTED.sub(found, condition) for condition in program._guards_code]


def load_tensors(path: Path) -> Any:
    """Load a safetensors file or a torch.save file of tensors and plain containers. Raises RecipeError otherwise."""
    try:
        if tensor_files.is_one(path):
            return tensor_files.read(path)[0]
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a foreign or broken file may raise anything
        raise RecipeError(f"--inputs {path} cannot be read: {_cause(error)}", HOW_TO_SAVE) from error


def as_list(given: Any) -> list[Any]:
    """Return what `load_tensors` returned, if it is not a dict, as a list of positional arguments."""
    return list(given) if isinstance(given, (tuple, list)) else [given]


HOW_TO_SAVE = (
    "save example inputs with safetensors.torch.save_file({'argument': tensor, ...}, 'inputs.safetensors') and give "
    "--inputs inputs.safetensors"
)


def _cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
