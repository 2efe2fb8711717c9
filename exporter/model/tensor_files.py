"""Files of named tensors: safetensors, with exporter's JSON in the metadata (docs/formats.md)."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

SUFFIX = ".safetensors"
ABOUT = "exporter"  # the only metadata entry: several would have no fixed order, and the bytes must be reproducible
PAIRS = (torch.complex32, torch.complex128)  # dtypes that the format lacks; stored as pairs of real numbers


def is_one(path: Path) -> bool:
    """Return whether a file is safetensors, by its name or its first bytes. Raises OSError if it cannot be read."""
    if path.suffix == SUFFIX:
        return True
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"  # after the length of the header, which a pickle and a zip archive lack


def save(tensors: Mapping[str, torch.Tensor], path: Path, about: Mapping[str, Any] | None = None) -> None:
    """Write tensors, with any strides and lazy bits, and the metadata `about`."""
    pairs = sorted(name for name, tensor in tensors.items() if tensor.dtype in PAIRS)
    told = {**(about or {}), **({"complex": pairs} if pairs else {})}
    stored = {name: _plain(tensor) for name, tensor in tensors.items()}
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(stored, path, {ABOUT: json.dumps(told)} if told else None)
    path.chmod(mode)  # the umask's: safetensors renames a temporary file, which only its owner may read


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy that shares no storage, with lazy bits resolved."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().clone()
    return torch.view_as_real(plain) if plain.dtype in PAIRS else plain


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors, copied into memory, and the metadata.

    Raises OSError if the file is missing, ValueError if the metadata is not an object, and what safetensors raises for
    a broken file.
    """
    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
    if not isinstance(about, dict):
        raise ValueError(f"`{ABOUT}` of its metadata is no object")
    for name in about.get("complex", ()):
        tensors[name] = torch.view_as_complex(tensors[name])
    return tensors, about
