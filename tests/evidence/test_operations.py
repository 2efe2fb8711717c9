"""The count of floating-point operations, in branches and loops too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.commands import Run
from torch.nn.attention import flex_attention
from torch.utils import _pytree as pytree

from exporter.evidence import operations

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
WEIGHT = torch.eye(4) / 2
ONCE = 2 * 3 * 4 * 4  # operations of the product of [3, 4] and [4, 4]


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ WEIGHT


def branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, product, lambda x: product(product(x)), (x,))


def loop(x: torch.Tensor) -> Any:
    """Run the body four times, with a branch that decides when it ends."""
    return torch.while_loop(
        lambda i, y: i < 4,
        lambda i, y: (i + torch.cond(y.sum() > 1e9, lambda: torch.tensor(0), lambda: torch.tensor(1)), product(y)),
        (torch.zeros((), dtype=torch.int64), x),
    )


def scan(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan as scanned

    return scanned(lambda carry, row: (carry + row, row[None] @ WEIGHT), torch.ones(4), x)


def mapped(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.map import map as each

    run: Any = each
    return run(lambda row: row[None] @ WEIGHT, x)


@pytest.mark.parametrize(
    ("call", "sign", "expected"),
    [(branch, 1, ONCE), (branch, -1, 2 * ONCE), (loop, 1, 4 * ONCE), (scan, 1, ONCE), (mapped, 1, ONCE)],
)
def test_operations_in_branches_and_loops_are_counted(call: Any, sign: int, expected: int) -> None:
    x, got = sign * torch.ones(3, 4), []
    with torch.no_grad():
        counted = operations.count(lambda: got.extend(pytree.tree_leaves(call(x))))
        first = call is scan and torch.__version__.startswith("2.11")  # which runs the body once more, for the shapes
        assert counted == (expected // 3 * 4 if first else expected)
        for have, want in zip(got, pytree.tree_leaves(call(x)), strict=True):
            assert torch.equal(have, want)


def test_a_call_that_computes_gradients_is_counted() -> None:
    def energy(x: torch.Tensor) -> torch.Tensor:
        return layer(x).square().sum()

    layer = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    assert operations.count(lambda: torch.func.vmap(torch.func.grad(energy))(x)) == 2 * ONCE


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_a_call_that_cannot_be_counted_is_counted_until_then() -> None:
    x = torch.randn(1, 2, 4, 4)

    def call() -> torch.Tensor:
        return flex_attention.flex_attention(x @ x, x, x, score_mod=lambda score, *place: score + 1)

    assert operations.count(call) == 2 * 2 * 4**3


@pytest.mark.parametrize("name", ["while_loop", "scanned", "mapped"])
def test_a_model_with_a_loop_is_exported(run: Run, name: str) -> None:
    manifest, _ = run(f"loops:{name}", "export", bench=False)
    assert [variant.status for variant in manifest.variants] == ["passed"]
