"""Types of a flat model's inputs and outputs; what a state dict and a sparse tensor consist of; unusual forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[Tensors], Tensors]  # one call

_INDICES = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def saved(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors in a module's state dict, where some libraries keep other objects too."""
    yield from (one for one in module.state_dict().values() if isinstance(one, torch.Tensor))


def parts(tensor: torch.Tensor) -> Tensors:
    """Return the tensors that hold a tensor's values and, if it is sparse, their indices."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if names := _INDICES.get(tensor.layout):
        return *(getattr(tensor, name)() for name in names), tensor.values()
    return (tensor,)


def in_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating tensor in float64, a complex one in complex128, and any other as it is."""
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double() if is_inexact(tensor) else tensor


def is_inexact(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds floating or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def unusual_form(tensor: torch.Tensor) -> str:
    """Return what a tensor is if it is not dense or has no values, and "" otherwise."""
    if tensor.is_meta:
        return "a tensor without values (device meta)"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_quantized:
        return "a quantized tensor"
    return "" if tensor.layout is torch.strided else f"a sparse tensor ({tensor.layout})"
