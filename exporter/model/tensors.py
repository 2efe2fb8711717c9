"""Types of a flat model's inputs and outputs; what a state dict and a sparse tensor consist of."""

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
