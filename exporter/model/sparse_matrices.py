"""Models that multiply by a constant sparse matrix, such as the adjacency of a graph.

torch.export can neither save nor lower a sparse tensor. While a graph is captured, products with such a matrix become
products of its elements with the rows that they select, which are added up.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_PRODUCTS = frozenset((
    torch.mm, torch.matmul, torch.mv, torch.sparse.mm, torch.spmm, torch.smm, torch.dsmm, torch.Tensor.mm,
    torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.mv,
))  # fmt: skip
_OPERANDS = ("input", "other", "mat1", "mat2", "mat", "vec", "sparse", "dense")
_SAME = ("coalesce", "to_sparse", "to_sparse_coo", "to_sparse_csr", "detach", "contiguous", "clone")
_CASTS = ("to", "cuda", "cpu", "float", "double", "half", "bfloat16")


class _Matrix:
    """Stands in for a sparse matrix of shape [n, m] while a graph is captured."""

    def __init__(
        self, layout: torch.layout, shape: torch.Size, rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor
    ) -> None:
        self.layout, self.shape, self.rows, self.columns, self.values = layout, shape, rows, columns, values
        self.dtype, self.device, self.ndim, self.requires_grad = values.dtype, values.device, 2, False
        self.is_sparse, self.is_sparse_csr = layout is torch.sparse_coo, layout is torch.sparse_csr

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Matrix:
        """Return the stand-in for a sparse tensor of any layout."""
        by_place = tensor.detach().to_sparse_coo().coalesce()
        rows, columns = by_place.indices()
        return cls(tensor.layout, tensor.shape, rows.clone(), columns.clone(), by_place.values().clone())

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        args = (*args, *(named[name] for name in _OPERANDS if name in named))
        usual = func in _PRODUCTS and len(args) == 2 and named.keys() <= set(_OPERANDS)
        if not usual or all(isinstance(one, cls) for one in args):
            raise TypeError(f"{getattr(func, '__name__', func)} of a sparse tensor cannot be captured")
        one, other = args
        return one @ other if isinstance(one, cls) else other._after(one)

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        """Return the product with a dense tensor [m] or [m, k]."""
        if dense.dim() > 2:
            raise TypeError("a product with a batch of matrices of a sparse tensor cannot be captured")
        values = self.values if dense.dim() == 1 else self.values.unsqueeze(1)
        picked = values * dense.index_select(0, self.columns)
        return picked.new_zeros(self.shape[0], *dense.shape[1:]).index_add(0, self.rows, picked)

    mm = matmul = mv = spmm = __matmul__

    def _after(self, dense: torch.Tensor) -> torch.Tensor:
        """Return the product of a dense tensor [..., n] with this matrix."""
        picked = dense.index_select(-1, self.rows) * self.values
        return picked.new_zeros(*dense.shape[:-1], self.shape[1]).index_add(-1, self.columns, picked)

    def _with(self, values: torch.Tensor) -> _Matrix:
        """Return a matrix of these elements, on their device."""
        rows, columns = self.rows.to(values.device), self.columns.to(values.device)
        return _Matrix(self.layout, self.shape, rows, columns, values)

    def t(self) -> _Matrix:
        """Return the transposed matrix."""
        turned = {torch.sparse_csr: torch.sparse_csc, torch.sparse_csc: torch.sparse_csr}
        layout = turned.get(self.layout, self.layout)
        return _Matrix(layout, torch.Size(reversed(self.shape)), self.columns, self.rows, self.values)

    T = mT = property(t)

    def transpose(self, one: int, other: int) -> _Matrix:
        """Return the matrix with two dimensions exchanged."""
        return self if one % 2 == other % 2 else self.t()

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of a dimension."""
        return self.shape if dim is None else self.shape[dim]

    def __getattr__(self, name: str) -> Any:
        if name in _SAME:
            return lambda *_, **__: self
        if name in _CASTS:
            return lambda *args, **kwargs: self._with(getattr(self.values, name)(*args, **kwargs))
        raise AttributeError(f"{name} of a sparse tensor cannot be captured")


def _is_matrix(value: Any) -> bool:
    """Return whether a value is a sparse matrix whose elements are numbers."""
    if not isinstance(value, torch.Tensor) or value.layout is torch.strided or value.dim() != 2:
        return False
    return value.layout is not torch.sparse_coo or value.dense_dim() == 0


@contextlib.contextmanager
def multiplied(module: torch.nn.Module, natively: bool = False) -> Iterator[None]:
    """Let products with sparse matrices that the module holds be captured.

    With `natively`, buffers in coordinate format stay what they are, unless several modules share one: TorchScript can
    hold these, but no others.
    """
    uses = collections.Counter(id(one) for inner in module.modules() for one in inner._buffers.values())
    with contextlib.ExitStack() as stack:
        for inner in module.modules():
            buffers, attributes = inner._buffers, vars(inner)
            for held in (buffers, attributes):
                for name, tensor in list(held.items()):
                    if not _is_matrix(tensor):
                        continue
                    if natively and held is buffers and tensor.layout is torch.sparse_coo and uses[id(tensor)] == 1:
                        continue
                    made = _Matrix.of(tensor)
                    stack.callback(held.__setitem__, name, tensor)
                    if held is buffers:
                        del buffers[name]
                        stack.callback(attributes.pop, name, None)
                    attributes[name] = made
        yield
