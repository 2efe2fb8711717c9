"""Products with constant sparse matrices, which torch.export cannot save."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch

from exporter.core.contract_records import Contract, TensorSpec
from exporter.core.errors import ExportError
from exporter.core.size_range import Range
from exporter.model import capture, flattening, sparse_matrices

Compute = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta", "ignore:Sparse invariant checks")
torch.manual_seed(0)
DENSE = torch.randn(6, 4) * (torch.rand(6, 4) < 0.4)


class Product(torch.nn.Module):
    """Computes with a sparse matrix [6, 4], which is a buffer or an attribute."""

    def __init__(self, compute: Compute, matrix: torch.Tensor, buffer: bool = True) -> None:
        super().__init__()
        self.compute = compute
        if buffer:
            self.register_buffer("matrix", matrix)
        else:
            self.matrix = matrix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(self.matrix, x)


def captured(model: torch.nn.Module, example: torch.Tensor) -> torch.nn.Module:
    """Capture the model with a dynamic last dimension, and return what is left after saving and loading."""
    flat = flattening.FlatModule(model, flattening.flatten_inputs(model, (example,))).eval()
    spec = TensorSpec("x", "float32", (*example.shape[:-1], "columns"))
    promised = Contract("product", (spec,), (), {"columns": Range(1, 9)})
    saved = io.BytesIO()
    torch.export.save(capture.export_program(flat, (example,), promised), saved)
    saved.seek(0)
    return torch.export.load(saved).module()


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize(
    "compute",
    [
        lambda a, x: a @ x,
        torch.sparse.mm,
        torch.mm,
        torch.spmm,
        lambda a, x: a.mm(x).relu(),
        lambda a, x: torch.matmul(a.to(x.device), x),
        lambda a, x: (x.T @ a.t()).T,
        lambda a, x: (torch.stack([x.T, 2 * x.T]) @ a.transpose(0, 1)).sum(0).T,
        lambda a, x: torch.mm(a, mat2=x),
    ],
    ids=["@", "sparse.mm", "mm", "spmm", "method", "matmul", "from-the-right", "batch-from-the-right", "named"],
)
def test_products_for_all_sizes(compute: Compute, buffer: bool, layout: torch.layout) -> None:
    model = Product(compute, DENSE.to_sparse(layout=layout), buffer)
    program = captured(model, torch.randn(4, 3))
    for columns in (1, 3, 8):
        x = torch.randn(4, columns)
        torch.testing.assert_close(program(x)[0], Product(compute, DENSE)(x))
    assert model.matrix.layout is layout  # the model is as before
    assert (dict(model.named_buffers()) != {}) == buffer
    assert ("matrix" in vars(model)) != buffer


def test_elements_that_occur_twice_are_added() -> None:
    twice = torch.sparse_coo_tensor([[0, 0, 5], [1, 1, 3]], [1.0, 2.0, 4.0], (6, 4), check_invariants=True)
    x = torch.randn(4, 3)
    torch.testing.assert_close(captured(Product(torch.mm, twice), x)(x)[0], twice.to_dense() @ x)


def test_vectors() -> None:
    def compute(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (matrix @ x.sum(-1)) @ matrix

    x = torch.randn(4, 3)
    torch.testing.assert_close(captured(Product(compute, DENSE.to_sparse()), x)(x)[0], compute(DENSE, x))


def test_branches_on_the_layout_are_eagers() -> None:
    def compute(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return matrix @ x if matrix.is_sparse and matrix.layout is torch.sparse_coo else matrix @ x + 1

    x = torch.randn(4, 3)
    for matrix in (DENSE.to_sparse(), DENSE.to_sparse_csr()):
        model = Product(compute, matrix)
        torch.testing.assert_close(captured(model, x)(x)[0], model(x))


@pytest.mark.parametrize(
    "compute",
    [lambda a, x: a.to_dense() @ x, lambda a, x: torch.add(x.T, a), lambda a, x: a * 2, lambda a, x: a @ x[None]],
)
def test_other_uses_are_refused(compute: Compute) -> None:
    model = Product(compute, DENSE.to_sparse())
    with pytest.raises(ExportError, match="sparse"):
        captured(model, torch.randn(4, 3))
    assert model.matrix.is_sparse


def test_buffers_stay_if_the_target_can_hold_them() -> None:
    model = Product(torch.mm, DENSE.to_sparse())
    with sparse_matrices.multiplied(model, natively=True):
        assert isinstance(model.matrix, torch.Tensor)
    model = Product(torch.mm, DENSE.to_sparse_csr())
    with sparse_matrices.multiplied(model, natively=True):
        assert not isinstance(model.matrix, torch.Tensor)
    assert model.matrix.layout is torch.sparse_csr
    shared = torch.nn.Sequential(Product(torch.mm, DENSE.to_sparse()), Product(torch.mm, DENSE))
    shared[1].matrix = shared[0].matrix  # TorchScript cannot hold one of two modules
    with sparse_matrices.multiplied(shared, natively=True):
        assert not any(isinstance(one.matrix, torch.Tensor) for one in shared)
    hybrid = torch.nn.Module()
    hybrid.register_buffer("matrix", torch.randn(3, 2, 2).to_sparse(1)[:, 0])
    with sparse_matrices.multiplied(hybrid):
        assert isinstance(hybrid.matrix, torch.Tensor)
