"""Files of tensors by name: safetensors, with JSON of our own in its metadata (docs/formats.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

SUFFIX = ".safetensors"
ABOUT = "exporter"  # the one entry of the metadata that is ours: entries have no order, and bytes should have
PAIRS = (torch.complex32, torch.complex128)  # dtypes that the format has not: stored as pairs of real numbers


def save(tensors: Mapping[str, torch.Tensor], path: Path, about: Mapping[str, Any] | None = None) -> None:
    """Write tensors, of any strides and bits, and what there is to say about them."""
    pairs = sorted(name for name, tensor in tensors.items() if tensor.dtype in PAIRS)
    told = {**(about or {}), **({"complex": pairs} if pairs else {})}
    stored = {name: _plain(tensor) for name, tensor in tensors.items()}
    save_file(stored, path, {ABOUT: json.dumps(told)} if told else None)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the values themselves: no storage is shared, and lazy bits are resolved."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().clone()
    return torch.view_as_real(plain) if plain.dtype in PAIRS else plain


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors, in memory of their own, and what is said about them.

    Raises what safetensors raises for a file that is broken, OSError for one that is missing, ValueError for metadata
    of another form.
    """
    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
    if not isinstance(about, dict):
        raise ValueError(f"`{ABOUT}` of its metadata is no object")
    for name in about.get("complex", ()):
        tensors[name] = torch.view_as_complex(tensors[name])
    return tensors, about
