"""Models that multiply by a constant sparse matrix, such as the adjacency of a graph.

torch.export can neither save nor lower a sparse tensor. While a graph is captured, products with such a matrix become
products of its elements with the rows that they select, which are added up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_PRODUCTS = frozenset((
    torch.mm, torch.matmul, torch.mv, torch.sparse.mm, torch.spmm, torch.smm, torch.dsmm, torch.Tensor.mm,
    torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.mv,
))  # fmt: skip
_SAME = ("coalesce", "to_sparse", "to_sparse_coo", "to_sparse_csr", "detach", "contiguous", "clone")
_CASTS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16")


class _Matrix:
    """Stands in for a sparse matrix of shape [n, m] while a graph is captured."""

    def __init__(self, shape: torch.Size, rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor) -> None:
        self.shape, self.rows, self.columns, self.values = shape, rows, columns, values
        self.dtype, self.device, self.is_sparse = values.dtype, values.device, True

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Matrix:
        """Return the stand-in for a sparse tensor of any layout."""
        by_place = tensor.detach().to_sparse_coo().coalesce()
        rows, columns = by_place.indices()
        return cls(tensor.shape, rows.clone(), columns.clone(), by_place.values().clone())

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if func not in _PRODUCTS or named or len(args) != 2 or all(isinstance(one, cls) for one in args):
            raise TypeError(f"{getattr(func, '__name__', func)} of a sparse tensor cannot be captured")
        one, other = args
        return one.times(other) if isinstance(one, cls) else other.t().times(one.mT).mT

    def times(self, dense: torch.Tensor) -> torch.Tensor:
        """Return the product with a dense tensor [m] or [m, k]."""
        values = self.values if dense.dim() == 1 else self.values.unsqueeze(1)
        picked = values * dense.index_select(0, self.columns)
        return picked.new_zeros(self.shape[0], *dense.shape[1:]).index_add(0, self.rows, picked)

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        return self.times(dense)

    mm = matmul = mv = spmm = __matmul__

    def _with(self, values: torch.Tensor) -> _Matrix:
        """Return a matrix of these elements, on their device."""
        return _Matrix(self.shape, self.rows.to(values.device), self.columns.to(values.device), values)

    def t(self) -> _Matrix:
        """Return the transposed matrix."""
        return _Matrix(torch.Size(reversed(self.shape)), self.columns, self.rows, self.values)

    T = mT = property(t)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of a dimension."""
        return self.shape if dim is None else self.shape[dim]

    def __getattr__(self, name: str) -> Any:
        if name in _SAME:
            return lambda *_, **__: self
        if name in _CASTS:
            return lambda *args, **kwargs: self._with(getattr(self.values, name)(*args, **kwargs))
        raise AttributeError(f"{name} of a sparse tensor cannot be captured")


@contextlib.contextmanager
def multiplied(module: torch.nn.Module, natively: bool = False) -> Iterator[None]:
    """Let products with sparse matrices that the module holds be captured.

    With `natively`, buffers in coordinate format stay what they are: TorchScript can hold these, but no others.
    """
    with contextlib.ExitStack() as stack:
        for inner in module.modules():
            buffers, attributes = inner._buffers, vars(inner)
            for held in (buffers, attributes):
                for name, tensor in list(held.items()):
                    if not isinstance(tensor, torch.Tensor) or tensor.layout is torch.strided or tensor.dim() != 2:
                        continue
                    if natively and held is buffers and tensor.layout is torch.sparse_coo:
                        continue
                    stack.callback(held.__setitem__, name, tensor)
                    if held is buffers:
                        del buffers[name]
                        stack.callback(attributes.pop, name)
                    attributes[name] = _Matrix.of(tensor)
        yield
